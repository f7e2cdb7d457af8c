"""Requests of one engine with drafts, rules, trees and predictions of their own."""

from __future__ import annotations

from collections import Counter

import pytest

import draftproof as dp
from draftproof.engine import engine as engines
from draftproof.models.drafters.ngram import NGram
from draftproof.models.table import TableModel
from tests.support import gof, tiny

PLAIN = dp.Sampling(end_tokens=())


def finish(engine):
    while not engine.is_finished:
        engine.step()


def test_each_request_is_drafted_as_it_asks():
    target, small = tiny.model(), tiny.model("llama", 1)
    engine = dp.Engine(target, draft=small, rows=8, length=80)
    settings = [
        {},
        {"draft": "ngram"},
        {"verify": "token"},
        {"verify": "traversal", "tree": "best:6x3"},
        {"tree": "chain:2"},
        {"draft": "none"},
    ]
    requests = [engine.add_request("abcabc", max_new_tokens=20, seed=3, sampling=PLAIN, **one) for one in settings]
    finish(engine)
    for request, one in zip(requests, settings, strict=True):
        alone = dp.generate(target, "abcabc", max_new_tokens=20, seed=3, sampling=PLAIN, **{"draft": small} | one)
        assert request.output.tokens == alone.tokens
        assert (request.trace.verifier, request.trace.drafter) == (alone.trace.verifier, alone.trace.drafter)


def test_a_request_that_is_not_drafted_goes_beside_those_that_are():
    target, small = tiny.model(), tiny.model("llama", 1)
    engine = dp.Engine(target, draft=small, rows=2, length=80)
    drafted = engine.add_request("abcabc", max_new_tokens=20, seed=3, sampling=PLAIN)
    plain = engine.add_request("abcabc", max_new_tokens=20, seed=3, sampling=PLAIN, speculate=False)
    finish(engine)
    assert len(engine.scheduler._flights) == 1
    assert (drafted.trace.drafter, plain.trace.drafter, plain.trace.drafted) == (small.name, "none", 0)
    alone = dp.generate(target, "abcabc", draft=None, max_new_tokens=20, seed=3, sampling=PLAIN)
    assert plain.output.tokens == alone.tokens


def test_idle_variants_make_room_for_others(monkeypatch):
    monkeypatch.setattr(engines, "VARIANTS", 2)
    engine = dp.Engine(tiny.model(), draft=None, rows=4, length=80)
    for shape in ("chain:1", "chain:2", "chain:3"):
        engine.add_request("abc", max_new_tokens=5, draft="ngram", tree=shape)
        finish(engine)
    assert len(engine._variants) == 2
    assert len(engine.scheduler._flights) == 2
    running = [engine.add_request("abc", max_new_tokens=9, draft="ngram", tree=f"chain:{n}") for n in (4, 5)]
    engine.step()
    with pytest.raises(dp.DraftproofError, match="requests of 2 kinds are running already"):
        engine.add_request("abc", max_new_tokens=5, draft="ngram", tree="chain:6")
    finish(engine)
    assert all(request.finish for request in running)


def greedy(prompt, prediction, **settings):
    """A greedy text of the tiny model with this prediction."""
    engine = dp.Engine(tiny.model(), rows=2, length=90, **settings)
    sampling = dp.Sampling(temperature=0, end_tokens=())
    request = engine.add_request(prompt, max_new_tokens=60, sampling=sampling, prediction=prediction, seed=1)
    finish(engine)
    return request


@pytest.mark.parametrize("draft", [None, "ngram"])
def test_a_right_prediction_takes_few_calls(draft):
    plain = greedy("abc", None, draft=None)
    assert len(plain.trace.steps) == 60
    text = plain.output.tokens
    right = greedy("abc", text, draft=draft)
    assert right.output.tokens == text
    assert len(right.trace.steps) < 12
    edited = [*text[:20], 5, 6, *text[20:40], *text[43:]]  # two tokens too many, three missing
    near = greedy("abc", edited, draft=draft)
    assert near.output.tokens == text
    assert len(near.trace.steps) < 20
    assert near.trace.drafter == ("prediction" if draft is None else "prediction|ngram")
    wrong = greedy("abc", [1, 2, 3] * 20, draft=None)
    assert wrong.output.tokens == text


@pytest.mark.parametrize("verify", ["block", "token", "gumbel"])
def test_a_prediction_leaves_the_law_as_it_is(verify):
    target = TableModel(lambda context: [0.2, 0.5, 0.3] if any(context[-1:]) else [0.5, 0.2, 0.3])
    engine = dp.Engine(target, draft=NGram(3), verify=verify, rows=64, length=20)
    requests = [engine.add_request([0], max_new_tokens=3, seed=seed, prediction=[1, 2, 0]) for seed in range(4000)]
    finish(engine)
    counts = Counter(tuple(request.tokens) for request in requests)
    laws = {0: [0.5, 0.2, 0.3], 1: [0.2, 0.5, 0.3], 2: [0.2, 0.5, 0.3]}
    expected = {(a, b, c): laws[0][a] * laws[a][b] * laws[b][c] for a in range(3) for b in range(3) for c in range(3)}
    gof.check(counts, expected)


def test_predictions_that_cannot_be():
    engine = dp.Engine(tiny.model(), draft=None, rows=1, length=80)
    with pytest.raises(dp.DraftproofError, match="token id 999 is outside the vocabulary"):
        engine.add_request("abc", prediction=[1, 999], max_new_tokens=5)
    assert engine.add_request("abc", prediction="", max_new_tokens=5).trace.drafter == "none"
