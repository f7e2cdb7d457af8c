"""The limit of acceptance that a step reports: its mean over drafts is the overlap of the laws of several tokens."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import draftproof as dp
from draftproof.engine.eager.constraints import Constraints
from draftproof.engine.eager.logprobs import chain_limits
from draftproof.engine.eager.propose import Proposal
from tests.support import tiny
from tests.support.heads import drafter
from tests.support.schedulers import table

DEPTH, SIZE = 3, 4
TARGET, DRAFT = table(1, SIZE, 0.02), table(2, SIZE, 0.02)


def joint(model, path):
    """The probability of a path after token 0."""
    return math.prod(model.rows((0, *path[:i]))[token] for i, token in enumerate(path))


def limits_of(path):
    """What a step that drafted this path reports."""
    contexts = [(0, *path[:i]) for i in range(DEPTH + 1)]
    p, q = (np.array([[model.rows(context) for context in contexts]]) for model in (TARGET, DRAFT))
    proposal = Proposal(dp.Tree.chain(DEPTH), np.array([[0, *path]]), [q], [None], None, Constraints({}))
    return chain_limits(0, DEPTH, proposal, p)


def test_its_mean_is_the_overlap_of_the_joint_laws():
    paths = list(itertools.product(range(SIZE), repeat=DEPTH))
    mean = sum(joint(DRAFT, path) * np.array(limits_of(path)) for path in paths)
    for depth in range(1, DEPTH + 1):
        heads = itertools.product(range(SIZE), repeat=depth)
        overlap = sum(min(joint(TARGET, path), joint(DRAFT, path)) for path in heads)
        assert mean[depth - 1] == pytest.approx(overlap)


def test_draft_tokens_without_a_law_cannot_be_accepted_more_often_than_the_rule_does():
    output = dp.generate(TARGET, [0, 1, 0, 1, 0, 1], draft="ngram", tree="chain:3", max_new_tokens=40, logprobs=0)
    drafted = [step for step in output.trace.steps if step.depth]
    assert drafted
    for step in drafted:
        assert step.limit == pytest.approx(step.reached)


def test_the_likeliest_token_is_no_draw():
    settings = {"verify": "match", "tree": "chain:3", "max_new_tokens": 40, "seed": 1, "logprobs": 0}
    fixed, drawn = (dp.generate(TARGET, [0], draft=DRAFT, draw=draw, **settings) for draw in ("fixed", "iid"))
    assert all(step.limit == pytest.approx(step.reached) for step in fixed.trace.steps)
    assert any(step.limit != pytest.approx(step.reached) for step in drawn.trace.steps)


def test_a_head_that_drafts_among_some_tokens_has_limits():
    target = tiny.model()
    output = dp.generate(target, (0, 2), draft=drafter("head", target), tree="chain:4", max_new_tokens=30, logprobs=0)
    for step in output.trace.steps:
        assert len(step.limit) == step.depth
        assert all(0 < limit <= 1 for limit in step.limit)


def test_trees_and_steps_without_logprobs_have_none():
    settings = {"draft": DRAFT, "max_new_tokens": 12, "seed": 1}
    silent = dp.generate(TARGET, [0], tree="chain:3", **settings)
    wide = dp.generate(TARGET, [0], tree="star:2", logprobs=0, **settings)
    assert not any(step.limit for output in (silent, wide) for step in output.trace.steps)
    assert "limit" not in silent.trace.as_dict()["steps"][0]
