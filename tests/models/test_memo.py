"""Remembering: laws seen before as drafts, and contexts asked before answered at once. Neither changes a law."""

from __future__ import annotations

import copy
from collections import Counter

import numpy as np
import pytest
import torch

import draftproof as dp
from draftproof import models, verify
from draftproof.models.drafters.ngram import NGram
from draftproof.models.drafters.recall import Recall
from draftproof.models.hf import HFModel
from draftproof.models.memo import Memo
from draftproof.theory.enumerate import target_law
from tests.support import gof, tiny
from tests.support.schedulers import PROMPT, ask, eager, samples, table


def test_what_was_seen_is_drafted_when_the_same_tokens_come_again():
    target, draft = tiny.model(), Recall(tiny.VOCABULARY)
    settings = {"draft": draft, "tree": dp.Tree.chain(5), "sampling": dp.Sampling(temperature=0), "max_new_tokens": 40}
    first = dp.generate(target, "abc", **settings)
    again = dp.generate(target, "abc", **settings)
    assert again.tokens == first.tokens
    assert again.trace.tokens_per_call > 1.2 * first.trace.tokens_per_call
    assert again.trace.histogram.keys() <= {0, 1, 2, 3, 4, 5}


def test_logits_are_kept_so_another_temperature_can_use_them():
    draft = Recall(tiny.VOCABULARY, kept=tiny.VOCABULARY)
    for temperature in (0.05, 0.1):
        out = dp.generate(
            tiny.model(), "abc", draft=draft, sampling=dp.Sampling(temperature=temperature), max_new_tokens=40, seed=1
        )
    assert out.trace.accepted > 0


def test_logits_of_half_the_precision_are_kept_too():
    halved = copy.deepcopy(tiny.model().network).to(torch.bfloat16)
    target, draft = HFModel(halved, tiny.tokenizer()), Recall(tiny.VOCABULARY)
    for _ in range(2):
        out = dp.generate(target, "abc", draft=draft, sampling=dp.Sampling(temperature=0), max_new_tokens=12)
    assert out.trace.accepted > 0


def test_drafting_from_memory_is_exact():
    """Short suffixes make the remembered laws wrong for most contexts: the text must not notice."""
    target = table(1, size=3, floor=0.2)
    draft = Recall(3, suffix=1, kept=2)
    for _ in range(2):
        counts, requests = samples(target, draft, verify.get("block"), dp.Tree.chain(2), count=2500)
    gof.check(counts, target_law(target.rows, 3, PROMPT))
    assert sum(request.trace.accepted for request in requests) > 500


def test_memory_is_bounded_and_the_oldest_goes_first():
    draft = Recall(5, suffix=2, kept=3, entries=4)
    for token in range(6):
        draft.remember([9, token], np.arange(5.0))
        draft.recall([9, 0])
    assert len(draft.known) == 4
    assert draft.recall([9, 1]) is None
    assert draft.recall([9, 0])[0].tolist() == [2, 3, 4]
    with pytest.raises(dp.DraftproofError, match="must be positive"):
        Recall(5, suffix=0)


def test_the_cache_is_a_drafter_by_name():
    assert models.drafter("cache", tiny.model()).name == "cache"


def test_a_memo_never_asks_about_a_context_twice():
    asked: Counter[tuple[int, ...]] = Counter()
    model = table(1, size=3)

    def rows(context):
        asked[context] += 1
        return model.rows(context)

    target = Memo(dp.models.table.TableModel(rows))
    asked.clear()
    for temperature in (0.5, 1.0, 2.0):
        for seed in range(10):
            sampling = dp.Sampling(temperature=temperature)
            dp.generate(target, PROMPT, draft=None, sampling=sampling, max_new_tokens=3, seed=seed)
    assert len(asked) > 5
    assert set(asked.values()) == {1}


def counting(seed: int = 1):
    """A memo of a table, and how often each context was computed."""
    asked: Counter[tuple[int, ...]] = Counter()
    model = table(seed, size=3)

    def rows(context):
        asked[context] += 1
        return model.rows(context)

    target = Memo(dp.models.table.TableModel(rows))
    asked.clear()
    return target, asked


def test_samples_and_sweeps_over_one_prompt_compute_a_context_once():
    """Rows that are known are left out of a call, equal rows are computed once, and all texts stay as they were."""
    target, asked = counting()
    for temperature in (0.5, 1.0, 2.0):
        settings = {"sampling": dp.Sampling(temperature=temperature), "max_new_tokens": 4, "draft": None}
        texts = [out.tokens for out in dp.generate(target, PROMPT, n=30, seed=7, **settings)]
        assert texts == [out.tokens for out in dp.generate(table(1, size=3), PROMPT, n=30, seed=7, **settings)]
    assert set(asked.values()) == {1}
    assert target.rows == len(asked) > 20


@pytest.mark.parametrize("kind", ["table", "network"])
def test_rows_fall_behind_and_catch_up_in_any_order(kind):
    """Requests with different prompts, some seen before: drafts, branches and rows that end early are in it."""
    model, draft = (table(1), table(2)) if kind == "table" else (tiny.model(), tiny.model("llama", 1))
    rule, tree = verify.get("block"), dp.Tree.chain(3)

    def write(target, numbers):
        batch = eager(target, [draft], rule, tree, 12, 60)
        made = []
        for number in numbers:
            prompt = tuple((number * 7 + i * i) % 5 for i in range(2 + number % 3))
            made += [ask(target, prompt, dp.Sampling(), dp.Sampling(), 6 + number, (number, r)) for r in range(2)]
            batch.add(made[-2:])
        while not batch.is_finished:
            batch.step()
        return [request.tokens for request in made]

    memo = Memo(model)
    for numbers in ((0, 1, 2), (3, 1, 4, 0), (4, 5, 2, 1)):
        before = memo.rows
        assert write(memo, numbers) == write(model, numbers)
        assert memo.rows > before
    before = memo.rows
    write(memo, (0, 1, 2))
    assert memo.rows == before


@pytest.mark.parametrize("kind", ["table", "network"])
def test_a_memo_that_forgets_answers_as_its_model_does(kind):
    """Random steps: rows that join, branch and end, trees with tokens that were not drawn, a few rows remembered."""
    model = table(1, size=3) if kind == "table" else tiny.model()
    chance, most = np.random.default_rng(4), 5
    memo = Memo(model)
    memo.most = 12
    ours, theirs = memo.session(most, 200), model.session(most, 200)
    texts: list[list[int]] = []
    shapes = (dp.Tree.chain(2), dp.Tree.of(2, 1), dp.Tree.chain(0), dp.Tree.star(3))
    for _ in range(60):
        if not texts or (len(texts) < most and chance.random() < 0.3):
            texts.append(chance.integers(3, size=3).tolist())
            for session in (ours, theirs):
                session.join(len(texts) - 1, texts[-1])
        tree = shapes[chance.integers(len(shapes))]
        tokens = chance.integers(3, size=(len(texts), tree.size))
        tokens[:, 0] = [text[-1] for text in texts]
        short = chance.random(len(texts)) < 0.2
        tokens[short, 1:] = -1
        one, other = (session.extend(tree, tokens, range(tree.size)) for session in (ours, theirs))
        for b, drawn in enumerate(tokens):
            for node in range(tree.size if not short[b] else 1):
                np.testing.assert_allclose(np.asarray(one[b, node]), np.asarray(other[b, node]), atol=1e-5)
            assert drawn[0] == texts[b][-1]
        before = len(texts)
        origin = [*range(before), *(b for b in range(before) if chance.random() < 0.3)][:most]
        node = [0 if short[b] else int(chance.integers(tree.size)) for b in origin]
        token = chance.integers(3, size=len(origin)).tolist()
        for session in (ours, theirs):
            for place, b in enumerate(origin[before:], start=before):
                session.copy(b, place)
            session.commit(tree, tokens[origin], node, token)
        texts = [
            [*texts[b], *(int(tokens[b, n]) for n in tree.path(last)), emitted]
            for b, last, emitted in zip(origin, node, token, strict=True)
        ]
        while len(texts) > 1 and chance.random() < 0.4:  # the last row takes the place of one that ends
            gone = int(chance.integers(len(texts)))
            if gone < len(texts) - 1:
                for session in (ours, theirs):
                    session.copy(len(texts) - 1, gone)
                texts[gone] = texts[-1]
            texts.pop()
    assert memo.calls > 10


def test_a_memo_gives_the_text_of_its_model_and_catches_up():
    settings = {"draft": tiny.model("llama", 1), "max_new_tokens": 30}
    plain = [dp.generate(tiny.model(), "hello", seed=seed, **settings).tokens for seed in (1, 1, 2, 3)]
    target = Memo(tiny.model())
    calls = []
    for seed, tokens in zip((1, 1, 2, 3), plain, strict=True):
        before = target.calls
        assert dp.generate(target, "hello", seed=seed, **settings).tokens == tokens
        calls.append(target.calls - before)
    assert calls[1] == 0 < calls[0]


def test_a_memos_memory_is_bounded():
    target = Memo(tiny.model(), megabytes=0)
    dp.generate(target, "hello", draft=None, max_new_tokens=10, seed=1)
    assert len(target.cached) == 1


def test_what_guessing_adds_to_memory_is_counted_from_the_buffers():
    target, rule, tree = tiny.model(), verify.get("block"), dp.Tree.chain(5)
    for draft in (NGram(tiny.VOCABULARY), tiny.model("llama", 1)):
        batch = eager(target, [draft], rule, tree, 1, 60)
        assert sum(batch.stepper.memory.values()) < 1000  # nothing but empty tables
        request = ask(target, tuple(b"abcabcabcabc"), dp.Sampling(), dp.Sampling(), 30, (1, 0))
        batch.add([request])
        while not batch.is_finished:
            batch.step()
        added = batch.memory
        assert added["slots"] == 6 * (2 * 2 * 2 * 8 * 4)  # layers, keys and values, heads, width, bytes
        row = tiny.VOCABULARY * 4
        nodes = 1 + max(step.depth for step in request.trace.steps)
        dense = 0 if isinstance(draft, NGram) else nodes * row  # certain guesses need no law
        assert added["laws"] == 2 * (nodes - 1) * row + dense
        assert added["noise"] == 8 * (nodes + 1)
        session = batch.stepper.drafters[0].session
        own = session.bytes if isinstance(draft, NGram) else session.cache.bytes
        assert added["drafters"] == own > 0
    plain = eager(target, [], rule, dp.Tree.chain(0), 1, 60)
    text = ask(target, (65,), dp.Sampling(), dp.Sampling(), 3, (1, 0))
    plain.add([text])
    plain.step()
    plain.step()
    assert plain.memory == {}
    for step, reads in zip(text.trace.steps, ("prompt", "target"), strict=True):
        assert set(step.seconds) == {"prompt", "draft", "target", "verify", "overhead"}
        assert min(step.seconds.values()) >= 0
        assert step.seconds[reads] > 0
        assert step.seconds["prompt"] * step.seconds["target"] == 0  # a call that reads prompts, or one that does not
