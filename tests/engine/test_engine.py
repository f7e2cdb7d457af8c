"""Requests of all kinds side by side: each gets the text that it would get alone."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import draftproof as dp
from draftproof.engine.eager.stepper import EagerStepper
from draftproof.engine.graph.runner import GraphStepper
from draftproof.kernels.types import unsupported
from draftproof.models.drafters.head import HeadModel
from draftproof.models.drafters.ngram import NGram, NGramSession
from draftproof.models.drafters.recall import Recall
from draftproof.models.drafters.text_draft import TextDrafter
from draftproof.models.hf import HFModel
from draftproof.models.memo import Memo
from draftproof.models.table import TableModel
from tests.support import tiny
from tests.support.heads import network

ORDERS = [
    {"prompt": "abcabc", "max_new_tokens": 20, "seed": 1},
    {"prompt": "hello", "max_new_tokens": 9, "seed": 2, "sampling": dp.Sampling(temperature=0.5, top_k=9)},
    {"prompt": "abcabc", "max_new_tokens": 14, "seed": 3, "sampling": dp.Sampling(repetition_penalty=1.4)},
    {"prompt": [3, 1, 4], "max_new_tokens": 12, "seed": 4, "draft_sampling": dp.Sampling(temperature=1.3)},
    {"prompt": "x", "max_new_tokens": 30, "seed": 5, "sampling": dp.Sampling(temperature=0), "stop": "a"},
]


def finish(engine: dp.Engine) -> dict[int, str]:
    said: dict[int, str] = {}
    while not engine.is_finished:
        for request, pieces in engine.step():
            said[id(request)] = said.get(id(request), "") + "".join(piece.text for piece in pieces)
    return said


@pytest.mark.parametrize(
    "how", [{"draft": None}, {"draft": "ngram"}, {"verify": "gumbel"}, {"verify": "csbv", "tree": dp.Tree.paths(2, 2)}]
)
def test_a_text_is_the_one_it_is_alone(how):
    target = tiny.model()
    how = {"draft": tiny.model("llama", 1)} | how
    engine = dp.Engine(target, rows=2, length=60, **how)
    requests = [engine.add_request(**order) for order in ORDERS]
    said = finish(engine)
    for request, order in zip(requests, ORDERS, strict=True):
        alone = dp.generate(target, **order, **how)
        assert request.output.tokens == alone.tokens
        assert request.output.finish == alone.finish
        assert said[id(request)] == alone.text


@pytest.fixture
def fuses(monkeypatch):
    """Steps are fused where they can be, as on a GPU."""

    def fits(target, drafts, rule, shape, samplings):
        return samplings[0] == samplings[1] and not unsupported(samplings[0])

    monkeypatch.setattr("draftproof.engine.graph.fits", fits)


@pytest.mark.usefixtures("fuses")
def test_what_the_fused_step_cannot_do_goes_beside_it():
    """There are two batches then, and a text is the same wherever it was written."""
    target, draft = tiny.model(), tiny.model("llama", 1)
    engine = dp.Engine(target, draft=draft, rows=2, length=60)
    requests = [engine.add_request(**order) for order in ORDERS]
    finish(engine)
    assert {type(stepper) for stepper in engine.scheduler._flights} == {EagerStepper, GraphStepper}
    assert [request.tuner is None for request in requests] == [True, True, True, False, True]  # a fused step asks none
    for request, order in zip(requests, ORDERS, strict=True):
        assert request.output.tokens == dp.generate(target, **order, draft=draft).tokens


def shy(ids, scores):
    """A processor that bears no long text."""
    if ids.shape[1] > 9:
        raise ZeroDivisionError("mine")
    return scores


@pytest.mark.usefixtures("fuses")
def test_what_one_batch_said_is_not_lost_when_another_raises():
    engine = dp.Engine(tiny.model(), draft=None, rows=3, length=60)
    endless = dp.Sampling(end_tokens=())
    text = engine.add_request("abcabc", max_new_tokens=20, seed=1, sampling=endless)
    wrong = engine.add_request("abc", seed=2, max_new_tokens=20, sampling=dp.Sampling(processors=[shy], end_tokens=()))
    said = ""
    while not engine.is_finished:
        try:
            said += "".join(piece.text for request, made in engine.step() if request is text for piece in made)
        except ZeroDivisionError:
            assert wrong.error
    assert wrong.finish == "failed"
    assert said == text.output.text


def test_requests_wait_for_a_row_in_their_order_and_can_be_cancelled():
    engine = dp.Engine(tiny.model(), draft=None, rows=1, length=60)
    first, second, third = (engine.add_request("abc", max_new_tokens=5, seed=n) for n in range(3))
    engine.step()
    assert (len(first.tokens), second.tokens) == (1, [])
    engine.cancel(second)
    engine.cancel(first)
    finish(engine)
    assert [(one.finish, len(one.tokens)) for one in (first, second, third)] == [
        ("cancelled", 1),
        ("cancelled", 0),
        ("length", 5),
    ]
    engine.cancel(third)  # a text that has ended stays as it is
    assert third.finish == "length"


@pytest.mark.parametrize("memory", [False, True], ids=["bare", "memo"])
@pytest.mark.parametrize(
    "how",
    [
        {"draft": None},
        {"draft": "ngram"},
        {"draft": tiny.model("llama", 1)},
        {"draft": tiny.model(), "tree": "paths:2x3", "verify": "traversal"},
    ],
    ids=["none", "ngram", "model", "tree"],
)
def test_what_a_request_raises_ends_it_and_costs_the_others_nothing(how, memory):
    """A memory knows what the step that raised has computed, so the target is not asked when that is tried again."""

    target = tiny.model()
    engine = dp.Engine(Memo(target) if memory else target, rows=3, length=60, **how)
    first = engine.add_request("abcabc", max_new_tokens=20, seed=1)
    wrong = engine.add_request("abc", max_new_tokens=20, seed=2, sampling=dp.Sampling(processors=[shy], end_tokens=()))
    last = engine.add_request("hello", max_new_tokens=20, seed=3)
    with pytest.raises(ZeroDivisionError, match="mine") as raised:
        finish(engine)
    assert (wrong.finish, wrong.error) == ("failed", raised.value)
    assert [first.error, last.error] == [None, None]
    finish(engine)
    for request, prompt, seed in ((first, "abcabc", 1), (last, "hello", 3)):
        assert request.tokens == dp.generate(target, prompt, max_new_tokens=20, seed=seed, **how).tokens


def test_each_of_those_that_fail_in_one_step_has_its_own_error():
    """Samplings that are alike are made laws in one call: its error is told to those alone who caused it."""

    why = ValueError("two does not divide it")

    def picky(ids, scores):
        if ids[0, 0] % 2:
            raise LookupError(f"odd: {ids[0, 0]}") from why
        return scores

    engine = dp.Engine(tiny.model(), draft="ngram", rows=6, length=60)
    how = {"max_new_tokens": 8, "sampling": dp.Sampling(processors=[picky], end_tokens=())}
    wide = dp.Sampling(processors=[lambda ids, scores: scores[:, 1:]])
    requests = [engine.add_request([first, 1, 2], seed=first, **how) for first in (3, 4, 5, 6)]
    requests.append(engine.add_request([7], seed=7, sampling=wide, max_new_tokens=8))
    with pytest.raises(LookupError, match="odd: 3") as raised:
        engine.step()
    assert [request.finish for request in requests] == ["failed", "", "failed", "", "failed"]
    assert requests[0].error is raised.value
    assert (raised.value.__cause__, raised.value.__context__) == (why, None)
    assert (type(requests[2].error), str(requests[2].error)) == (LookupError, "odd: 5")
    assert "keep the shape" in str(requests[4].error)
    finish(engine)
    for request in (requests[1], requests[3]):
        alone = dp.generate(tiny.model(), request.prompt, draft="ngram", seed=request.key.seed, **how)
        assert (request.finish, request.tokens) == ("length", alone.tokens)


class Choosy(TableModel):
    """A target that does not take every prompt."""

    def session(self, rows, capacity):
        inner = super().session(rows, capacity)
        join = inner.join

        def chosen(row, tokens):
            if len(tokens) > 2:
                raise MemoryError("too long for me")
            join(row, tokens)

        inner.join = chosen
        return inner


def test_a_prompt_that_the_target_does_not_take_is_the_end_of_its_request_alone():
    coin = TableModel(lambda context: [0.5, 0.5])
    engine = dp.Engine(Choosy(coin.rows), draft=coin, rows=3)
    requests = [engine.add_request([0] * length, max_new_tokens=9, seed=length) for length in (1, 3, 2)]
    with pytest.raises(MemoryError, match="too long for me") as raised:
        engine.step()
    assert [request.error for request in requests] == [None, raised.value, None]
    finish(engine)
    assert [request.finish for request in requests] == ["length", "failed", "length"]
    for request in requests[::2]:
        alone = dp.generate(coin, request.prompt, draft=coin, max_new_tokens=9, seed=request.key.seed)
        assert request.tokens == alone.tokens


class Hiccup:
    """A processor that raises once."""

    calls = 0

    def __call__(self, ids, scores):
        self.calls += 1
        if self.calls == 3:
            raise TimeoutError("once")
        return scores


def test_an_error_that_is_over_when_it_is_looked_for_ends_no_request():
    engine = dp.Engine(tiny.model(), draft=None, rows=2, length=60)
    request = engine.add_request("abc", max_new_tokens=8, seed=1, sampling=dp.Sampling(processors=[Hiccup()]))
    with pytest.raises(TimeoutError, match="once"):
        finish(engine)
    assert (request.finish, request.error) == ("", None)
    finish(engine)
    assert request.tokens == dp.generate(tiny.model(), "abc", draft=None, max_new_tokens=8, seed=1).tokens


def poisoned(seed: int = 0) -> HFModel:
    """A model that cannot read token 200."""
    whole = copy.deepcopy(tiny.network("llama", seed))
    with torch.no_grad():
        whole.get_input_embeddings().weight[200] = torch.nan
    return HFModel(whole, tiny.tokenizer())


@pytest.mark.parametrize("place", [1, 2], ids=["a text is moved there", "a text joins there"])
@pytest.mark.parametrize("draft", ["none", "model", "text", "head"])
def test_a_text_whose_states_are_not_numbers_leaves_none_of_them_in_its_row(draft, place):
    target = poisoned()
    small = poisoned(seed=1)
    drafts = {"model": small, "text": TextDrafter(target, small), "head": HeadModel(target, network())}
    how = {"max_new_tokens": 20, "seed": 1, "sampling": dp.Sampling(end_tokens=(), banned=[200])}
    engine = dp.Engine(target, draft=drafts.get(draft), rows=3, length=80)
    prompts = [list(range(60, 90)), [70, 71]]  # one is longer than the wrong text, so what that leaves is looked at
    prompts.insert(place, [65] * 10 + [200] + [66] * 5)
    requests = [engine.add_request(prompt, **how) for prompt in prompts]
    with pytest.raises(dp.DraftproofError, match="non-finite") as raised:
        engine.step()
    wrong = requests.pop(place)
    assert (wrong.finish, wrong.error) == ("failed", raised.value)
    requests.append(engine.add_request([72, 73], **how))
    finish(engine)
    for request in requests:
        assert not request.trace.failures
        assert request.tokens == dp.generate(target, request.prompt, draft=drafts.get(draft), **how).tokens


def test_scores_that_are_not_numbers_are_not_remembered():
    target, draft = poisoned(), Recall(tiny.model().vocabulary)
    engine = dp.Engine(target, draft=draft, rows=2, length=80)
    for prompt in ([65, 66], [65, 200, 66]):
        engine.add_request(prompt, max_new_tokens=5, seed=1, sampling=dp.Sampling(banned=[200]))
    with pytest.raises(dp.DraftproofError, match="non-finite"):
        engine.step()
    assert draft.known
    assert all(np.isfinite(scores).all() for _, scores in draft.known.values())


@pytest.mark.parametrize("cancelled", [False, True], ids=["", "before it is known"])
@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.usefixtures("fuses")
def test_nor_does_it_where_the_step_is_fused(drafted, cancelled):
    target, draft = poisoned(), poisoned(seed=1) if drafted else None
    how = {"max_new_tokens": 20, "seed": 1, "sampling": dp.Sampling(end_tokens=(), banned=[200])}
    engine = dp.Engine(target, draft=draft, rows=2, length=80)
    first = engine.add_request(list(range(60, 90)), **how)
    engine.step()
    wrong = engine.add_request([65] * 10 + [200] + [66] * 5, **how)
    if cancelled:
        engine.step()  # is in flight
        engine.cancel(wrong)
    else:
        with pytest.raises(dp.DraftproofError, match="non-finite") as raised:
            finish(engine)
        assert (wrong.finish, wrong.error) == ("failed", raised.value)
    last = engine.add_request([70, 71], **how)
    finish(engine)
    assert {type(stepper) for stepper in engine.scheduler._flights} == {GraphStepper}
    for request in (first, last):
        alone = dp.Engine(target, draft=draft, rows=1, length=80)
        other = alone.add_request(list(request.prompt), **how)
        finish(alone)
        assert request.tokens == other.tokens


@pytest.mark.usefixtures("fuses")
def test_nor_does_one_that_ends_while_a_step_in_flight_reads_on():
    how = {"max_new_tokens": 20, "seed": 1, "sampling": dp.Sampling(end_tokens=(), banned=[200])}
    engine = dp.Engine(poisoned(), draft=None, rows=2, length=60)
    first = engine.add_request(list(range(60, 90)), **how)
    reads = dp.Sampling(end_tokens=(200,), allowed=[200])
    ended = engine.add_request([65] * 10, max_new_tokens=20, sampling=reads)
    while not ended.finish:
        engine.step()
    assert (ended.finish, first.finish) == ("end", "")
    last = engine.add_request([70, 71], **how)
    finish(engine)
    for request in (first, last):
        assert request.tokens == dp.generate(tiny.model(), request.prompt, draft=None, **how).tokens


def test_a_request_of_another_engine_is_left_alone():
    mine, other = (dp.Engine(tiny.model(), draft=None, rows=1, length=60) for _ in range(2))
    running, waiting = (mine.add_request("abc", max_new_tokens=5, seed=n) for n in range(2))
    mine.step()
    with pytest.raises(dp.DraftproofError, match="cancel takes a request that add_request returned, not 3"):
        mine.cancel(3)
    for request in (running, waiting):
        with pytest.raises(dp.DraftproofError, match="belongs to another engine: cancel it where it was added"):
            other.cancel(request)
    assert not other.scheduler._flights  # nor is anything opened for it
    finish(mine)
    assert (running.finish, waiting.finish) == ("length", "length")


def test_mistakes_are_named_at_once():
    engine = dp.Engine(tiny.model(), draft=None, rows=1, length=20)
    with pytest.raises(dp.DraftproofError, match="3 tokens of prompt and 18 of text do not fit into 20"):
        engine.add_request("abc", max_new_tokens=18)
    with pytest.raises(dp.DraftproofError, match="max_new_tokens must be a whole number of at least 1, not 0"):
        engine.add_request("abc", max_new_tokens=0)
    for name in ("sampling", "draft_sampling"):
        with pytest.raises(dp.DraftproofError, match="banned names token -1, but the vocabulary has ids 0 to 257"):
            engine.add_request("abc", max_new_tokens=5, **{name: dp.Sampling(banned=[-1])})
    for what, wrong in (("rows", 0), ("rows", "a"), ("length", 0), ("length", 9.5)):
        with pytest.raises(dp.DraftproofError, match=f"{what} must be a whole number of at least 1, not {wrong!r}"):
            dp.Engine(tiny.model(), **{what: wrong})
    with pytest.raises(dp.DraftproofError, match="'block' works on chain drafts only"):
        dp.Engine(tiny.model(), draft="ngram", verify="block", tree=dp.Tree.star(3))
    assert engine.is_finished


class Moody(NGramSession):
    """A drafter that cannot begin a long text, or move one to another row."""

    def join(self, row, tokens):
        if self.model.name == "join" and len(tokens) > 5:
            raise RuntimeError("too long for me")
        super().join(row, tokens)

    def copy(self, source, target):
        if self.model.name == "copy":
            raise RuntimeError("cannot move")
        super().copy(source, target)


class MoodyModel(NGram):
    def session(self, rows, capacity):
        return Moody(self, rows)


@pytest.mark.parametrize(("what", "failure"), [("join", "too long for me"), ("copy", "cannot move")])
def test_a_drafter_that_fails_between_steps_is_given_up_and_texts_go_on(what, failure):
    target = tiny.model()
    drafter = MoodyModel(target.vocabulary)
    drafter.name = what
    engine = dp.Engine(target, draft=drafter, rows=2, length=60)
    first = engine.add_request("ab", max_new_tokens=6, seed=1)
    engine.step()
    second = engine.add_request("abcdefgh", max_new_tokens=20, seed=2)
    finish(engine)
    assert (len(first.tokens), len(second.tokens)) == (6, 20)
    assert second.trace.failures == {failure: 1}


class Tired(NGramSession):
    """A drafter that fails where its model says so: at some calls, counted over all its sessions."""

    def guess(self, tree, tokens, nodes):
        self.model.calls += 1
        if self.model.calls in self.model.fails_at:
            raise RuntimeError("out of memory for a moment")
        return super().guess(tree, tokens, nodes)


class TiredModel(NGram):
    def __init__(self, vocabulary, fails_at):
        super().__init__(vocabulary)
        self.calls, self.fails_at = 0, fails_at

    def session(self, rows, capacity):
        return Tired(self, rows)


def test_a_drafter_that_failed_is_asked_again_for_those_who_come_later():
    target = tiny.model()
    engine = dp.Engine(target, draft=TiredModel(target.vocabulary, {1}), rows=3, length=80, tree="chain:2")
    repetitive = {"prompt": "abababab", "max_new_tokens": 40, "sampling": dp.Sampling(temperature=0)}
    first = engine.add_request(**repetitive)
    engine.step()
    assert (first.trace.failures, first.trace.drafted) == ({"out of memory for a moment": 1}, 0)
    engine.step()
    assert first.trace.drafted == 0  # nobody has come
    second = engine.add_request(**repetitive)
    finish(engine)
    assert not second.trace.failures
    assert min(first.trace.drafted, second.trace.drafted) > 0  # the drafter has read what the first had said meanwhile
    alone = dp.generate(target, draft="ngram", tree="chain:2", **repetitive)
    assert first.output.tokens == second.output.tokens == alone.tokens
    assert second.trace.drafted == alone.trace.drafted


def test_a_drafter_that_fails_again_and_again_is_told_to_everyone():
    target = tiny.model()
    engine = dp.Engine(target, draft=TiredModel(target.vocabulary, range(1000)), rows=2, length=60)
    requests = [engine.add_request("abab", max_new_tokens=5, seed=n) for n in range(6)]
    finish(engine)
    assert all(request.trace.failures for request in requests)
    assert [len(request.tokens) for request in requests] == [5] * 6


@pytest.mark.parametrize("method", ["copy", "join", "commit", "extend", "speaks"])
@pytest.mark.parametrize("who", ["target", "draft"])
def test_a_session_that_lacks_something_is_refused_before_a_text_begins(who, method):
    """Else a drafter without `copy`, say, would serve until two texts part, and then no more."""

    class Whole(TableModel):
        def session(self, rows, capacity):
            inner = super().session(rows, capacity)
            names = {"speaks", "join", "copy", "extend", "commit"} - {method}
            return SimpleNamespace(**{name: getattr(inner, name) for name in names})

    coin = TableModel(lambda context: [0.5, 0.5])
    models = {"target": coin, "draft": coin} | {who: Whole(coin.rows, name="mine")}
    with pytest.raises(dp.DraftproofError, match=f"the session of 'mine' has no {method}: write it as"):
        dp.generate(prompt=[0], **models)


def test_half_a_model_is_refused():
    coin = TableModel(lambda context: [0.5, 0.5])
    for who in ("target", "draft"):
        half = SimpleNamespace(name="mine", session=coin.session, vocabulary=2, context=None)
        with pytest.raises(dp.DraftproofError, match=f"{who} SimpleNamespace has no end_tokens, tokenizer: "):
            dp.Engine(**{"target": coin, "draft": coin} | {who: half})


def test_a_target_that_speaks_in_laws_is_refused():
    """Its laws would be taken for logits, and the text would follow another law without a word."""
    with pytest.raises(dp.DraftproofError, match="'ngram' speaks in laws, as drafters may: a target must give logits"):
        dp.generate(NGram(5), [0, 1], draft=None)
