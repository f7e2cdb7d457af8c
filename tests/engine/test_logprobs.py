"""Logprobs are those of the law that is sampled from, computed here again from the finished text."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import draftproof as dp
from draftproof import couple, verify
from draftproof.engine.eager.stepper import EagerStepper
from draftproof.engine.graph.runner import GraphStepper
from draftproof.models.table import TableModel
from draftproof.sampling import Context, law
from tests.support import tiny
from tests.support.heads import drafter
from tests.support.schedulers import table

PROMPT = (0, 2)
TARGET, DRAFT, OTHER = table(1, 6, 0.02), table(2, 6, 0.02), table(3, 6, 0.02)
SHAPES = ("best:6x3", "paths:2x2", "star:2", "chain:3")


def never_again(ids, scores):
    """A processor: the last token becomes unlikely."""
    scores = scores + 0
    scores[0, int(ids[0, -1])] -= 2.0
    return scores


CONTROLS = {
    "plain": {},
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.2},
    "typical_p": {"typical_p": 0.7},
    "epsilon_cutoff": {"epsilon_cutoff": 0.05},
    "eta_cutoff": {"eta_cutoff": 0.05},
    "penalties": {"repetition_penalty": 1.4, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    "masks": {"logit_bias": {1: 0.7}, "banned": [4], "allowed": [0, 1, 2, 3, 4]},
    "min_new_tokens": {"min_new_tokens": 6, "end_tokens": (3,)},
    "schedules": {"temperature": dp.Anneal(1.4, 0.5, over=8), "top_k": dp.ByEntropy(2, 6)},
    "processor": {"processors": [never_again]},
}


def laws(target, output, sampling, prompt=PROMPT):
    """The laws [T, V] of a finished text's tokens, from the model's logits alone."""
    session = target.session(1, len(prompt) + len(output.tokens) + 1)
    session.join(0, prompt)
    root, tree, found = prompt[-1], dp.Tree.chain(0), []
    for place, token in enumerate(output.tokens):
        logits = np.asarray(session.extend(tree, np.array([[root]]), range(1)))[:, 0]
        found.append(law(logits, sampling, [Context(prompt, tuple(output.tokens[:place]))])[0])
        session.commit(tree, np.array([[root]]), [0], [token])
        root = token
    return np.array(found)


def check(output, expected, most, tolerance=1e-12):
    assert [one.token for one in output.logprobs] == output.tokens
    for one, row in zip(output.logprobs, expected, strict=True):
        assert one.logprob == pytest.approx(math.log(row[one.token]), abs=tolerance)
        assert len(one.top) == min(most, np.count_nonzero(row))
        best = np.sort(row)[::-1][: len(one.top)]
        assert [value for _, value in one.top] == pytest.approx(np.log(best).tolist(), abs=tolerance)
        assert [row[token] for token, _ in one.top] == pytest.approx(best.tolist(), abs=tolerance)
        assert len({token for token, _ in one.top}) == len(one.top)


def shape(rule):
    return next(name for name in SHAPES if rule.accepts(dp.Tree.parse(name)))


RULES = {**verify.VERIFIERS, **couple.COUPLINGS}


@pytest.mark.parametrize("name", sorted(RULES))
def test_every_rule(name):
    """Two samples, which share rows at first."""
    for output in dp.generate(
        TARGET, PROMPT, n=2, draft=DRAFT, verify=name, tree=shape(RULES[name]), max_new_tokens=20, seed=3, logprobs=3
    ):
        assert output.trace.accepted
        check(output, laws(TARGET, output, dp.Sampling()), 3)


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("draft", [DRAFT, "ngram", None], ids=["model", "ngram", "none"])
def test_every_control(control, draft):
    sampling = dp.Sampling(**CONTROLS[control])
    output = dp.generate(TARGET, PROMPT, draft=draft, sampling=sampling, max_new_tokens=20, seed=3, logprobs=4)
    check(output, laws(TARGET, output, sampling), 4)
    if control == "greedy":
        assert {(one.logprob, len(one.top)) for one in output.logprobs} == {(0, 1)}


@pytest.mark.parametrize("rule", ["clipped:1.25", "lenience:0.8", "skip:0.9", "typical:0.09,0.3"])
def test_of_a_lossy_rule_they_are_the_targets(rule):
    output = dp.generate(TARGET, PROMPT, draft=DRAFT, lossy=rule, tree="chain:3", max_new_tokens=20, seed=3, logprobs=2)
    check(output, laws(TARGET, output, dp.Sampling()), 2)


def test_a_token_that_only_a_lossy_rule_emits_has_none_in_json():
    target, draft = TableModel(lambda context: [0.5, 0.5, 0.0]), TableModel(lambda context: [0.0, 0.0, 1.0])
    output = dp.generate(target, [0], draft=draft, lossy="skip:0.9", tree="chain:2", max_new_tokens=6, logprobs=0)
    assert -math.inf in [one.logprob for one in output.logprobs]
    steps = json.loads(json.dumps(output.trace.as_dict(), allow_nan=False))["steps"]
    assert None in [one["logprob"] for step in steps for one in step["logprobs"]]


@pytest.mark.parametrize("how", [{"tree": "chain:4"}, {"verify": "traversal", "tree": "best:8x3"}, {"n": 3}, {}])
def test_of_a_network(how):
    target, draft = tiny.model(), tiny.model("llama", 1)
    sampling = dp.Sampling(temperature=0.8, top_k=40)
    made = dp.generate(
        target, list(PROMPT), draft=draft, sampling=sampling, max_new_tokens=24, logprobs=5, seed=1, **how
    )
    for output in made if isinstance(made, list) else [made]:
        check(output, laws(target, output, sampling), 5, tolerance=1e-5)


@pytest.mark.parametrize("how", [{"tree": "chain:4"}, {"verify": "traversal", "tree": "best:8x3"}])
def test_of_a_head_that_drafts_among_some_tokens(how):
    """Even tokens alone: an odd one could not be drafted. A chain is drawn and verified in C where that is possible."""
    target = tiny.model()
    output = dp.generate(target, PROMPT, draft=drafter("head", target), max_new_tokens=40, seed=1, logprobs=1, **how)
    check(output, laws(target, output, dp.Sampling()), 1, tolerance=1e-5)
    inner = [
        one for step in output.trace.steps for one in step.logprobs[:1]
    ]  # after node 0 something is always drafted
    assert {one.token % 2 for one in inner} == {0, 1}
    for one in inner:
        assert (one.draft_logprob is None) == bool(one.token % 2)


def test_the_drafters_logprob_is_that_of_the_law_that_was_drawn_from():
    hot = dp.Sampling(temperature=1.5)
    output = dp.generate(
        TARGET, PROMPT, draft=DRAFT, draft_sampling=hot, tree="chain:3", max_new_tokens=30, seed=1, logprobs=0
    )
    drafter = laws(DRAFT, output, hot)
    place = 0
    for step in output.trace.steps:
        for i, one in enumerate(step.logprobs):
            if i < 3:  # after the chain nothing is drafted
                assert one.draft_logprob == pytest.approx(math.log(drafter[place, one.token]))
            elif place + 1 < len(output.tokens):
                assert one.draft_logprob is None
            place += 1


def test_of_several_drafters_it_is_that_of_the_one_that_drafted_it():
    """One drafts evens, the other odds, so each token tells who drafted it."""
    even, odd = ([0.5, 0, 0.3, 0, 0.2, 0], [0, 0.1, 0, 0.2, 0, 0.7])
    drafts = [TableModel(lambda context, row=row: row) for row in (even, odd)]
    output = dp.generate(
        TARGET, PROMPT, draft=drafts, verify="recursive", tree="star:2", max_new_tokens=30, seed=1, logprobs=0
    )
    drafted = [one for step in output.trace.steps for one in step.logprobs[: step.accepted]]
    assert {one.token % 2 for one in drafted} == {0, 1}
    for one in drafted:
        assert one.draft_logprob == pytest.approx(math.log((odd if one.token % 2 else even)[one.token]))


def test_a_drafter_that_is_certain_has_logprob_zero():
    output = dp.generate(
        TARGET, [0, 1, 0, 1, 0, 1], draft="ngram", tree="chain:2", max_new_tokens=40, seed=2, logprobs=0
    )
    accepted = [one for step in output.trace.steps for one in step.logprobs[: step.accepted]]
    others = [one for step in output.trace.steps for one in step.logprobs[step.accepted :]]
    assert {one.draft_logprob for one in accepted} == {0.0}
    assert {one.draft_logprob for one in others} == {None}


def test_an_engine_gives_each_request_what_it_asked_for():
    """Without a draft, requests with one prompt share a row; their logprobs are there after every step."""
    engine = dp.Engine(TARGET, draft=None, rows=3)
    none, few, many = (engine.add_request(PROMPT, max_new_tokens=9, seed=1, logprobs=k) for k in (None, 0, 4))
    while not engine.is_finished:
        engine.step()
        assert [one.token for one in few.logprobs] == few.tokens
    assert none.output.logprobs is None
    assert not any(step.logprobs for step in none.trace.steps)
    check(few.output, laws(TARGET, few.output, dp.Sampling()), 0)
    check(many.output, laws(TARGET, many.output, dp.Sampling()), 4)


def test_more_than_there_are_tokens_and_texts_that_end_early():
    sampling = dp.Sampling(end_tokens=(3,))
    output = dp.generate(TARGET, PROMPT, draft=DRAFT, sampling=sampling, seed=1, logprobs=100)
    assert output.finish == "end"
    check(output, laws(TARGET, output, sampling), 100)
    told = json.loads(json.dumps(output.trace.as_dict()))["steps"]
    assert [one["token"] for step in told for one in step["logprobs"]] == output.tokens
    off = dp.generate(TARGET, PROMPT, draft=DRAFT, sampling=sampling, seed=1)
    assert off.logprobs is None
    assert off.tokens == output.tokens
    assert not any("logprobs" in step for step in off.trace.as_dict()["steps"])


def test_laws_of_torch_are_ranked_by_torch():
    """A processor keeps laws in torch, as a GPU does."""
    sampling = dp.Sampling(processors=[lambda ids, scores: scores - torch.zeros(1)])
    target = tiny.model()
    output = dp.generate(
        target, [65, 66], draft=tiny.model("llama", 1), sampling=sampling, max_new_tokens=9, logprobs=3
    )
    check(output, laws(target, output, dp.Sampling(), (65, 66)), 3, tolerance=1e-5)


def test_the_graph_stepper_is_not_asked_for_them(monkeypatch):
    monkeypatch.setattr("draftproof.engine.graph.fits", lambda *given: True)
    engine = dp.Engine(tiny.model(), draft=None, rows=2, length=60)
    engine.add_request("abc", max_new_tokens=4, seed=1)
    wants = engine.add_request("abc", max_new_tokens=4, seed=1, logprobs=0)
    while not engine.is_finished:
        engine.step()
    assert {type(stepper) for stepper in engine.scheduler._flights} == {EagerStepper, GraphStepper}
    assert len(wants.logprobs) == 4


@pytest.mark.parametrize("wrong", [-1, True, 1.5, "2"])
def test_a_wrong_number_is_named(wrong):
    with pytest.raises(dp.DraftproofError, match="logprobs must be a whole number of at least 0, not"):
        dp.generate(TARGET, [0], logprobs=wrong)
