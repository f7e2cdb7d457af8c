"""Two steppers, one engine: what the eager one reports of seeded requests, the graph one reports too.

On a CPU the graph stepper runs its step eagerly. Results are collected at once here, as the eager stepper does: the
steps that it keeps in flight on a GPU only delay what it knows.
"""

from __future__ import annotations

import copy

import pytest
import torch

import draftproof as dp
from draftproof import verify
from draftproof.models.hf import HFModel
from tests.support import heads, tiny
from tests.support.schedulers import ask, eager, graph

PROMPTS = [[65, 66, 67], [70] * 9, [80, 81]]
CHAIN, TREE = dp.Tree.chain(3), dp.Tree.best(7, 3)
SAMPLINGS = {
    "plain": dp.Sampling(temperature=0.9),
    "greedy": dp.Sampling(temperature=0),
    "truncated": dp.Sampling(temperature=1.1, top_k=20, top_p=0.9),
    "min_p": dp.Sampling(min_p=0.02, logit_bias={65: 3.0, 70: -2.0}),
    "masked": dp.Sampling(banned=(65, 66, 67)),
}
PENALTIES = dp.Sampling(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2)


class Wrapped(torch.nn.Module):
    """A network with a fault that depends on positions alone, so that both steppers meet it at the same token."""

    def __init__(self, network, fault):
        super().__init__()
        self.network, self.fault = network, fault
        self.config, self.generation_config = network.config, network.generation_config

    def forward(self, input_ids=None, position_ids=None, logits_to_keep=0, **others):
        said = self.network(input_ids=input_ids, position_ids=position_ids, logits_to_keep=logits_to_keep, **others)
        said.logits = self.fault(said.logits, position_ids[:, -said.logits.shape[1] :])
        return said

    @property
    def device(self):
        return self.network.device

    @property
    def dtype(self):
        return self.network.dtype


def faulty(seed, fault):
    return HFModel(Wrapped(tiny.network("llama", seed), fault), tiny.tokenizer(), "faulty")


def not_a_number(first):
    """From this position on there are no logits."""
    return lambda logits, positions: logits.masked_fill((positions >= first)[..., None], torch.nan)


def lost(first):
    """Once the last committed token stands at this position, nothing that follows has logits."""
    return lambda logits, positions: logits.masked_fill((positions[:, :1] >= first)[..., None], torch.nan)


def raises(first):
    def fault(logits, positions):
        if (positions >= first).any():
            raise RuntimeError("the drafter broke")
        return logits

    return fault


def run(scheduler, requests, cancel=()):
    """Step to the end; `cancel` maps a step to the request that is given up before it."""
    for request in requests:
        scheduler.add([request])
    errors, step = [], 0
    while not scheduler.is_finished:
        for when, which in cancel:
            if when == step:
                scheduler.cancel(requests[which])
        try:
            scheduler.step()
        except dp.DraftproofError as error:
            errors.append(str(error))
        step += 1
    return errors


def compare(target, draft, rule, tree, requests, cancel=()):
    """The same requests through both; every field of their traces."""
    drafts = [] if draft is None else [draft]
    both = copy.deepcopy(requests), copy.deepcopy(requests)
    one = eager(target, drafts, verify.get(rule), tree, len(requests), 120)
    other = graph(target, draft, rule, tree, len(requests), 120)
    other.stepper.lookahead = 0
    errors = [run(scheduler, texts, cancel) for scheduler, texts in zip((one, other), both, strict=True)]
    assert errors[0] == errors[1]
    for left, right in zip(*both, strict=True):
        assert left.output._replace(trace=None) == right.output._replace(trace=None)
        assert str(left.error) == str(right.error)
        assert left.trace.failures == right.trace.failures
        assert left.trace.shapes == right.trace.shapes
        for a, b in zip(left.trace.steps, right.trace.steps, strict=True):
            assert a._replace(reached=(), seconds={}) == b._replace(reached=(), seconds={})
            assert b.reached == pytest.approx(a.reached, abs=2e-4)
            assert a.seconds.keys() == b.seconds.keys()
            assert all(seconds >= 0 for seconds in (*a.seconds.values(), *b.seconds.values()))
    assert one.memory.keys() == other.memory.keys()
    return both[1]


def asked(target, sampling, lengths=(18, 25, 21), **extra):
    return [
        ask(target, prompt, sampling, sampling, length, (11, r), **extra)
        for r, (prompt, length) in enumerate(zip(PROMPTS, lengths, strict=True))
    ]


@pytest.mark.parametrize("kind", ["llama", "head"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("rule", "tree"), [("token", CHAIN), ("block", CHAIN), ("traversal", CHAIN), ("traversal", TREE)]
)
def test_both_report_the_same(rule, tree, sampling, kind):
    target = tiny.model()
    texts = compare(target, heads.drafter(kind, target), rule, tree, asked(target, SAMPLINGS[sampling]))
    assert sum(text.trace.drafted for text in texts) > 0
    assert all(step.reached for text in texts for step in text.trace.steps if step.depth)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_penalties(rule):
    target = tiny.model()
    compare(target, tiny.model("llama", 1), rule, CHAIN, asked(target, PENALTIES))


def test_plain_sampling():
    target = tiny.model()
    texts = compare(target, None, "block", dp.Tree.chain(0), asked(target, SAMPLINGS["plain"]))
    assert all(step.reached == () and step.drafted == 0 for text in texts for step in text.trace.steps)


@pytest.mark.parametrize("tree", [CHAIN, TREE])
def test_stop_strings_and_ends(tree):
    target = tiny.model()
    letters = [target.tokenizer.decode([token]) for token in range(97, 123)]
    texts = compare(
        target, tiny.model("llama", 1), "traversal", tree, asked(target, dp.Sampling(), stop=tuple(letters))
    )
    assert "stop" in {text.finish for text in texts}


@pytest.mark.parametrize("tree", [CHAIN, TREE])
def test_cancelled_requests(tree):
    target = tiny.model()
    texts = compare(target, tiny.model("llama", 1), "traversal", tree, asked(target, dp.Sampling()), [(2, 1), (4, 0)])
    assert [text.finish for text in texts][:2] == ["cancelled", "cancelled"]


@pytest.mark.parametrize("tree", [CHAIN, TREE])
@pytest.mark.parametrize("first", [9, 10, 11, 12, 13])
def test_a_drafter_that_raises_half_way(first, tree):
    target = tiny.model()
    texts = compare(target, faulty(1, raises(first)), "traversal", tree, asked(target, dp.Sampling()))
    assert [dict(text.trace.failures) for text in texts] == [{"the drafter broke": 1}] * 3
    assert any(step.drafted for step in texts[0].trace.steps) or first < 11
    assert not any(step.drafted for step in texts[0].trace.steps[-3:])  # given up


@pytest.mark.parametrize("first", [3, 5, 6, 7, 8])
def test_a_drafter_without_a_law(first):
    target = tiny.model()
    (text,) = compare(target, faulty(1, not_a_number(first)), "block", CHAIN, asked(target, dp.Sampling())[:1])
    assert list(text.trace.failures.values()) == [1]
    assert "non-finite" in next(iter(text.trace.failures))


@pytest.mark.parametrize("tree", [CHAIN, TREE])
def test_a_target_row_that_is_not_a_number(tree):
    """The longest text comes to a position without logits and fails; the others write what they would."""
    target = faulty(0, lost(26))
    texts = compare(target, tiny.model("llama", 1), "traversal", tree, asked(target, dp.Sampling()))
    assert [text.finish for text in texts] == ["length", "failed", "length"]
    assert "non-finite" in str(texts[1].error)
