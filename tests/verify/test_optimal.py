"""The optimal rules reach their limits: against linear programs on small rows, against closed forms on large ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from draftproof import hull
from draftproof.draft import Draft, Tree
from draftproof.draws import DRAWS, rest, tops
from draftproof.law import overlap
from draftproof.theory import bounds
from draftproof.theory.enumerate import expected_accepted
from draftproof.theory.transport import guesses, transport
from draftproof.verify import VERIFIERS, optimal_binned
from draftproof.verify.importance import duel
from tests.support.tables import correlated


def accepted(name: str, p: np.ndarray, q: np.ndarray, draw: str, siblings: int) -> float:
    return float(expected_accepted(VERIFIERS[name], lambda c: p, lambda c: q, Tree.star(siblings), DRAWS[draw]))


def test_optimal_is_the_linear_programs_optimum() -> None:
    """500 random pairs, some with zeros, some close together."""
    chance = np.random.default_rng(0)
    for number in range(500):
        size, siblings = int(chance.integers(2, 7)), int(chance.integers(2, 4))
        p, q = chance.dirichlet(np.ones(size), size=2)
        if number % 5 == 0:
            q = 0.8 * p + 0.2 * q
        if number % 7 == 0:
            p, q = (np.where(np.arange(size) == at, 0, row) for row, at in ((p, 0), (q, 1)))
            p, q = p / p.sum(), q / q.sum()
        best = transport(p, guesses(q, DRAWS["iid"], siblings)).value
        assert overlap(p, hull.plan(p, q, siblings).law) == pytest.approx(best, abs=1e-9)
        assert bounds.iid(p, q, siblings) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "draw"), [("optimal", "iid"), ("nodeplan", "plan"), ("sbv_plan", "plan"), ("top_plus_one", "top")]
)
@pytest.mark.parametrize("siblings", [2, 3])
def test_verifiers_reach_the_limit_of_their_draws(name: str, draw: str, siblings: int) -> None:
    for seed in range(6):
        p, q = correlated(seed, 4, 1.5, 0.7)
        limit = bounds.LIMITS[draw](p[None], q[None], siblings)[0]
        assert accepted(name, p, q, draw, siblings) == pytest.approx(limit, abs=1e-12)


@pytest.mark.parametrize("name", sorted(VERIFIERS))
def test_no_verifier_exceeds_the_limit_of_its_draws(name: str) -> None:
    """A rule above its limit is wrong, however plausible its output looks."""
    verifier, tree = VERIFIERS[name], Tree.star(2)
    if verifier.trees == "chain":
        tree = Tree.chain(1)
    for draw in sorted(verifier.draws):
        for seed in range(4):
            p, q = correlated(100 + seed, 4, 1.5, 0.9)
            limit = float(bounds.LIMITS[draw](p[None], q[None], tree.size - 1)[0])
            found = expected_accepted(verifier, lambda c, p=p: p, lambda c, q=q: q, tree, DRAWS[draw])
            assert found <= limit + 1e-12


def test_importance_with_the_full_program_reaches_the_limit_for_two() -> None:
    for seed in range(40):
        p, q = correlated(200 + seed, 3 + seed % 4, 1.5, 0.5)
        assert overlap(p, duel(p, q, q, solved=len(p)).a) == pytest.approx(bounds.iid(p, q, 2), abs=1e-9)


def test_importance_approaches_the_limit_with_more_tokens_solved_for() -> None:
    """And its law is that of the weights used, whatever the solver was asked."""
    p, q = correlated(210, 30, 2.0, 0.8)
    reached = [overlap(p, duel(p, q, q, solved).a) for solved in (2, 5, 10, 30)]
    assert all(low <= high + 1e-9 for low, high in itertools.pairwise(reached))
    assert reached[0] < reached[-1] - 0.01
    assert reached[-1] == pytest.approx(bounds.iid(p, q, 2), abs=1e-9)


def test_bins_lose_little() -> None:
    """The overlap of p with the law of the binned pick at V = 1000, K = 4, against the limit."""
    for seed in range(4):
        for likeness in (0.8, 0.95, 0.99):
            p, q = correlated(300 + seed, 1000, 2.0, likeness)
            a, _ = optimal_binned.choose(p[None], q[None], np.full((1, 4), np.argmax(q)))
            loss = bounds.iid(p, q, 4) - overlap(p, a[0])
            assert -1e-12 <= loss < optimal_binned.WIDTH / 8


def test_binned_rule_on_torch_is_the_one_on_numpy() -> None:
    p, q = correlated(310, 500, 3.0, 0.9)
    tokens = np.random.default_rng(0).choice(500, size=(8, 3), p=q)
    here = optimal_binned.rule(np.stack([p] * 8), [np.stack([q] * 8)] * 3, tokens)
    p, q, tokens = torch.from_numpy(np.stack([p] * 8)), torch.from_numpy(np.stack([q] * 8)), torch.from_numpy(tokens)
    for ours, theirs in zip(here, optimal_binned.rule(p, [q] * 3, tokens), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def test_planned_number_of_fixed_guesses() -> None:
    """A peaked row fixes its peak, a flat one nothing, a short one all but the last."""
    peaked, flat, short = np.array([0.9, 0.04, 0.03, 0.03]), np.full(4, 0.25), np.array([0.5, 0.5, 0.0, 0.0])
    assert tops(np.stack([peaked, flat, short]), 2).tolist() == [1, 0, 1]
    assert tops(np.stack([peaked, flat, short]), 4).tolist() == [3, 3, 2]
    fixed, free = rest(peaked[None], np.array([1]), 2)
    assert fixed.tolist() == [[0, -1]]
    np.testing.assert_allclose(free, [[0, 0.4, 0.3, 0.3]], rtol=0, atol=1e-12)


def test_large_row_of_the_verifier() -> None:
    """V = 1000, K = 4: the mean acceptance over sampled guesses agrees with the limit, and stays a law in float32."""
    p, q = correlated(400, 1000, 3.0, 0.95)
    chance = np.random.default_rng(1)
    tokens = np.concatenate([np.full((200, 1), -1), chance.choice(1000, size=(200, 4), p=q)], axis=1)
    shape = (200, 5, 1000)
    q_rows = np.zeros(shape)
    q_rows[:, 0] = q
    draft = Draft(Tree.star(4), tokens, q_rows, np.broadcast_to(p, shape))
    stop = VERIFIERS["optimal"].stop(draft)
    limit = bounds.iid(p, q, 4)
    sigma = np.std(1 - stop[:, 0]) / np.sqrt(len(stop))
    assert abs(1 - stop[:, 0].mean() - limit) < 5 * sigma
    single = Draft(
        draft.tree, torch.from_numpy(tokens), *(torch.from_numpy(x.copy()).float() for x in (q_rows, draft.p))
    )
    np.testing.assert_allclose(VERIFIERS["optimal"].stop(single), stop, rtol=0, atol=1e-4)
