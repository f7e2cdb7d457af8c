"""Closed forms of the limits against linear programs and against sums over all sets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from draftproof.draft import Tree
from draftproof.draws import DRAWS
from draftproof.law import overlap
from draftproof.theory import bounds
from draftproof.theory.enumerate import expected_accepted
from draftproof.theory.transport import guesses, transport
from draftproof.verify import VERIFIERS
from tests.support.tables import as_float, correlated, table


@pytest.mark.parametrize("draw", sorted(bounds.LIMITS))
def test_limit_of_each_way_of_drawing(draw: str) -> None:
    """Against the transport program; rows with zeros, more siblings than tokens, a drafter without a guess."""
    for seed in range(24):
        size, siblings = 3 + seed % 3, 1 + seed % 4
        p, q = as_float(table(seed, size))(()), as_float(table(500 + seed, size, abstain=0.1))(())
        best = transport(p, guesses(q, DRAWS[draw], siblings)).value
        assert bounds.LIMITS[draw](p[None], q[None], siblings)[0] == pytest.approx(best, abs=1e-9)


def test_two_identical_drafts() -> None:
    """Khisti's closed form, and the condition for acceptance one, agree with the program on 1,000 random pairs."""
    chance = np.random.default_rng(2)
    always = 0
    for _ in range(1000):
        size = int(chance.integers(2, 6))
        p, q = chance.dirichlet(2 * np.ones(size), size=2)
        q = (p + q) / 2
        best = transport(p, guesses(q, DRAWS["iid"], 2)).value
        assert bounds.pair(p, q) == pytest.approx(best, abs=1e-9)
        assert bool(bounds.certain(p, q, 2)) is (best > 1 - 1e-9)
        always += bool(bounds.certain(p, q, 2))
    assert 100 < always < 900, "the pairs were all of one kind"


@pytest.mark.parametrize("siblings", [2, 3, 4])
def test_condition_is_about_all_sets_and_exact(siblings: int) -> None:
    """Prefixes of the ratio order decide for all sets; with Fractions a limit of exactly one is told from less."""
    kinds = set()
    for seed in range(40):
        p, q = table(seed, 4)(()), table(900 + seed, 4)(())
        q = (3 * p + q) / 4
        sets = itertools.chain.from_iterable(itertools.combinations(range(4), n) for n in range(5))
        every = all(sum(q[t] for t in inside) ** siblings <= sum(p[t] for t in inside) for inside in sets)
        assert bool(bounds.certain(p, q, siblings)) is every
        assert bool(bounds.iid(p, q, siblings) == 1) is every
        kinds.add(every)
    assert kinds == {True, False}


def test_one_guess_is_the_overlap() -> None:
    for seed in range(20):
        p, q = table(seed, 5)(()), table(700 + seed, 5)(())
        assert bounds.iid(p, q, 1) == overlap(p, q)
        assert bounds.distinct(*(x.astype(float) for x in (p, q)), 1) == pytest.approx(float(overlap(p, q)), abs=1e-9)


def test_rows_come_in_batches_on_any_backend() -> None:
    p, q = (np.stack([as_float(table(s, 6))(()) for s in seeds]) for seeds in (range(8), range(50, 58)))
    batch = bounds.iid(p, q, 3)
    assert batch.shape == (8,)
    for one, row_p, row_q in zip(batch, p, q, strict=True):
        assert one == bounds.iid(row_p, row_q, 3)
    np.testing.assert_allclose(bounds.iid(torch.from_numpy(p), torch.from_numpy(q), 3), batch, rtol=0, atol=1e-14)
    for draw in ("fixed", "top", "plan"):
        here, there = (bounds.LIMITS[draw](f(p), f(q), 3) for f in (np.asarray, torch.from_numpy))
        np.testing.assert_allclose(here, there, rtol=0, atol=1e-14)


def test_more_guesses_never_hurt_and_distinct_ones_help() -> None:
    p, q = correlated(5, 6, 1.5, 0.5)
    limits = np.array([[f(p, q, k) for k in (1, 2, 3, 4)] for f in (bounds.iid, bounds.distinct)])
    assert np.all(np.diff(limits, axis=1) >= -1e-9)
    assert np.all(limits[1] >= limits[0] - 1e-9)
    assert limits[1, 2] > limits[0, 2] + 0.01


@pytest.mark.parametrize(("length", "size"), [(1, 4), (2, 3), (3, 2)])
def test_block_verification_is_the_best_for_one_path(length: int, size: int) -> None:
    for seed in range(6):
        target, drafter = table(seed, size), table(600 + seed, size, abstain=0.2)
        tree, draw = Tree.chain(length), DRAWS["iid"]
        assert bounds.block(target, drafter, length) == expected_accepted(
            VERIFIERS["block"], target, drafter, tree, draw
        )
