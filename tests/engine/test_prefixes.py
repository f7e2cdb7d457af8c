"""Prompts that begin like another text are read from there on, and long ones in parts; texts stay the same."""

from __future__ import annotations

import numpy as np
import pytest

import draftproof as dp
from draftproof import Tree
from draftproof.engine.eager.prefixes import SHORTEST, KeptTexts, Prefix, common_prefix
from draftproof.models.drafters.fallback import Fallback
from draftproof.models.drafters.head import HeadModel
from draftproof.models.drafters.ngram import NGram
from draftproof.models.memo import Memo
from tests.support import tiny
from tests.support.heads import network

LONG = "a prompt that is longer than what is read with a step of other texts"
PLAIN = dp.Sampling(end_tokens=())


def drafter(name, target):
    match name:
        case "none":
            return None
        case "model":
            return tiny.model("llama", 1)
        case "ngram":
            return NGram(target.vocabulary)
        case "head":
            return HeadModel(target, network())
        case "ngram|head":
            return Fallback([NGram(target.vocabulary), HeadModel(target, network())])


DRAFTERS = ("none", "model", "ngram", "head", "ngram|head")


def finish(engine):
    while not engine.is_finished:
        engine.step()


@pytest.mark.parametrize(
    ("family", "draft"), [("llama", draft) for draft in DRAFTERS] + [("mistral", "model"), ("gpt2", "none")]
)
def test_the_next_turn_reads_what_is_new_and_says_the_same(family, draft):
    target = tiny.model(family)
    guesser = drafter(draft, target)
    engine = dp.Engine(target, draft=guesser, rows=2, length=96)
    first = engine.add_request("a question of some length", max_new_tokens=12, seed=3, sampling=PLAIN)
    finish(engine)
    prompt = [*first.prompt, *first.tokens, 7, 8, 9]
    second = engine.add_request(prompt, max_new_tokens=12, seed=4, sampling=PLAIN)
    finish(engine)
    alone = dp.generate(target, prompt, draft=guesser, max_new_tokens=12, seed=4, sampling=PLAIN)
    assert second.output.tokens == alone.tokens
    assert second.trace.reused >= len(first.prompt) + 11  # all but the last token, which was never read
    assert first.trace.reused == 0


@pytest.mark.parametrize("draft", DRAFTERS)
def test_a_long_prompt_is_read_while_others_are_written(draft, monkeypatch):
    monkeypatch.setattr("draftproof.engine.eager.arrivals.MOST", 20)
    target = tiny.model()
    guesser = drafter(draft, target)
    engine = dp.Engine(target, draft=guesser, rows=3, length=96)
    before = engine.add_request("abcabc", max_new_tokens=60, seed=1, sampling=PLAIN)
    engine.step()
    late = engine.add_request(LONG, max_new_tokens=9, seed=2, sampling=PLAIN)
    behind = engine.add_request("xyz", max_new_tokens=9, seed=5, sampling=PLAIN)
    lengths = []
    while not late.tokens:
        lengths.append(len(before.tokens))
        engine.step()
        assert late.tokens or not behind.tokens  # in order of arrival
    assert len(lengths) > 2, "the prompt takes several parts"
    assert all(np.diff(lengths) > 0), "the other text goes on between them"
    finish(engine)
    for request, prompt, length, seed in [(before, "abcabc", 60, 1), (late, LONG, 9, 2), (behind, "xyz", 9, 5)]:
        alone = dp.generate(target, prompt, draft=guesser, max_new_tokens=length, seed=seed, sampling=PLAIN)
        assert request.output.tokens == alone.tokens
    assert late.trace.seconds["prompt"] >= late.trace.prefill > 0


@pytest.mark.parametrize(("length", "is_read"), [(41, True), (40, False)])
def test_a_drafter_reads_a_long_prompt_in_parts_even_if_nothing_is_drafted_now(length, is_read, monkeypatch):
    """Else the next step with a draft would have to read all of it."""
    monkeypatch.setattr("draftproof.engine.eager.stepper.MOST", 40)
    engine = dp.Engine(tiny.model(), draft=tiny.model("llama", 1), rows=2, length=96)
    together = engine.setup.together
    together.tree, together._next = Tree.chain(0), lambda: Tree.chain(0)
    engine.add_request([65, 66], max_new_tokens=50, sampling=PLAIN)
    engine.step()
    arriving = engine.add_request([65 + k % 20 for k in range(length)], max_new_tokens=50, sampling=PLAIN)
    while not arriving.tokens:
        engine.step()
    (stepper,) = engine.scheduler._flights
    assert bool(stepper.drafters[0].session.length[1] > 0) is is_read


def test_a_running_text_serves_a_prompt_that_begins_the_same():
    target = tiny.model()
    engine = dp.Engine(target, draft=None, rows=2, length=96, kept=0)
    first = engine.add_request(LONG, max_new_tokens=20, seed=1, sampling=PLAIN)
    engine.step()
    second = engine.add_request(LONG + "!?", max_new_tokens=20, seed=2, sampling=PLAIN)
    finish(engine)
    assert second.trace.reused == len(LONG)
    for request, prompt, seed in ((first, LONG, 1), (second, LONG + "!?", 2)):
        expected = dp.generate(target, prompt, draft=None, max_new_tokens=20, seed=seed, sampling=PLAIN)
        assert request.output.tokens == expected.tokens


def test_samples_that_arrive_while_others_are_written_share_their_prompt():
    target = tiny.model()
    setup = dp.Engine(target, draft=None, rows=4, length=96)
    setup.add_request("abc", max_new_tokens=30, seed=1, sampling=PLAIN)
    setup.step()
    samples = [setup.add_request(LONG, max_new_tokens=5, seed=seed, sampling=PLAIN) for seed in (2, 3)]
    finish(setup)
    for sample, seed in zip(samples, (2, 3), strict=True):
        alone = dp.generate(target, LONG, draft=None, max_new_tokens=5, seed=seed, sampling=PLAIN)
        assert sample.output.tokens == alone.tokens


def test_a_sample_that_comes_after_another_has_begun_has_a_text_of_its_own():
    """The prompt can be read from the other's row, but what that has written since is none of its text."""
    target = tiny.model()
    engine = dp.Engine(target, draft=None, rows=3, length=96)
    samples = []
    for seed in (1, 2, 3):
        samples.append(engine.add_request("abcabc", max_new_tokens=12, seed=seed, sampling=PLAIN))
        engine.step()
    finish(engine)
    for sample, seed in zip(samples, (1, 2, 3), strict=True):
        alone = dp.generate(target, "abcabc", draft=None, max_new_tokens=12, seed=seed, sampling=PLAIN)
        assert sample.output.tokens == alone.tokens


def test_a_prompt_that_is_being_read_can_be_cancelled(monkeypatch):
    monkeypatch.setattr("draftproof.engine.eager.arrivals.MOST", 16)
    target = tiny.model()
    engine = dp.Engine(target, draft=None, rows=3, length=96)
    running = engine.add_request("abc", max_new_tokens=30, seed=1, sampling=PLAIN)
    engine.step()
    gone = engine.add_request(LONG, max_new_tokens=5, seed=2)
    waiting = engine.add_request(LONG[::-1], max_new_tokens=5, seed=3, sampling=PLAIN)
    engine.step()
    engine.cancel(gone)
    finish(engine)
    assert (gone.finish, gone.tokens, running.finish) == ("cancelled", [], "length")
    alone = dp.generate(target, LONG[::-1], draft=None, max_new_tokens=5, seed=3, sampling=PLAIN)
    assert waiting.output.tokens == alone.tokens


def test_a_prompt_that_cannot_be_read_fails_alone(monkeypatch):
    target = tiny.model()
    engine = dp.Engine(target, draft=None, rows=2, length=96)
    running = engine.add_request("abc", max_new_tokens=10, seed=1, sampling=PLAIN)
    engine.step()

    def refuse(row, count):
        raise ZeroDivisionError("mine")

    (stepper,) = engine.scheduler._flights
    monkeypatch.setattr(stepper.target, "prefill", refuse)
    failing = engine.add_request(LONG, max_new_tokens=5, seed=2)
    with pytest.raises(ZeroDivisionError, match="mine"):
        finish(engine)
    assert failing.finish == "failed"
    finish(engine)
    assert running.finish == "length"


def test_a_target_without_a_cache_of_its_own_reads_prompts_as_ever():
    target = Memo(tiny.model())
    engine = dp.Engine(target, draft=None, rows=2, length=96)
    for _ in range(2):
        request = engine.add_request(LONG, max_new_tokens=5, seed=2, sampling=PLAIN)
        finish(engine)
        assert request.trace.reused == 0
    alone = dp.generate(tiny.model(), LONG, draft=None, max_new_tokens=5, seed=2, sampling=PLAIN)
    assert request.output.tokens == alone.tokens


def text(start, length=SHORTEST):
    return tuple(range(start, start + length))


def test_the_least_recently_used_text_goes_first():
    kept = KeptTexts(range(5, 7))
    assert kept.row_for(text(0, SHORTEST - 1)) is None, "too short to be worth it"
    rows = [kept.row_for(text(0)), kept.row_for(text(100))]
    assert sorted(rows) == [5, 6]
    assert kept.longest(text(0, 30), []) == Prefix(rows[0], SHORTEST)  # so it has been used
    assert kept.row_for(text(200)) == rows[1]
    assert kept.longest(text(100), []) is None
    assert kept.row_for((*text(0), 1)) == rows[0], "a text takes the place of the one that it continues"
    assert kept.longest((*text(0), 2), [(0, (*text(0), 2))]) == Prefix(0, SHORTEST + 1)
    assert kept.tokens == 2 * SHORTEST + 1
    assert KeptTexts(range(0)).row_for(text(0)) is None


def test_common_prefixes():
    rng = np.random.default_rng(0)
    for _ in range(200):
        first, second = (tuple(rng.integers(0, 2, rng.integers(0, 9)).tolist()) for _ in range(2))
        expected = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
        assert common_prefix(first, second) == (min(len(first), len(second)) if expected is None else expected)
