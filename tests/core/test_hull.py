"""Hull and peel: the pick has the law it claims, exactly on Fractions and to rounding on the worst floats."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from draftproof import hull
from draftproof.draws import DRAWS
from draftproof.law import overlap
from draftproof.theory import bounds
from draftproof.verify import _pick, sbv_plan
from tests.support.tables import correlated, table


def law_of_the_pick(plan: hull.HullPlan, q: Any) -> Any:
    """Summed over every outcome of the guesses."""
    law = q * 0
    for guess in itertools.product(np.nonzero(q > 0)[0].tolist(), repeat=plan.siblings):
        chance = math.prod(q[x] for x in guess)
        for token, share in zip(guess, hull.winner(plan, np.array(guess)), strict=True):
            law[token] += chance * share
    return law


@pytest.mark.parametrize(("size", "siblings"), [(2, 4), (3, 3), (4, 2), (5, 2)])
def test_pick_has_its_law_exactly(size: int, siblings: int) -> None:
    for seed in range(15):
        p, q = table(2 * seed, size)(()), table(2 * seed + 1, size)(())
        plan = hull.plan(p, q, siblings)
        assert list(law_of_the_pick(plan, q)) == list(plan.law)
        assert overlap(p, plan.law) == bounds.iid(p, q, siblings)


@pytest.mark.parametrize("scale", [1.0, 5.0, 15.0, 40.0])
def test_pick_has_its_law_in_floats(scale: float) -> None:
    """Logits so far apart that most tokens have less mass than rounding leaves."""
    for seed in range(6):
        p, q = correlated(seed, 6, scale, (0.3, 0.9, 0.99)[seed % 3])
        plan = hull.plan(p, q, 3)
        assert abs(law_of_the_pick(plan, q) - plan.law).sum() < 1e-14
        assert abs(plan.law.sum() - 1) < 1e-14


@pytest.mark.parametrize("siblings", [2, 3, 4])
def test_planned_pick_has_its_law_exactly(siblings: int) -> None:
    """With fixed guesses among the drawn ones, summed over every outcome; the scale solves its equation."""
    scales, draw = set(), DRAWS["plan"]
    for seed in range(12 if siblings < 4 else 3):
        p, q = table(2 * seed, 4)(()), table(2 * seed + 1, 4)(())
        law, said = q * 0, None
        for guess in itertools.product(range(-1, 4), repeat=siblings):
            chance = draw.probability(q[None], np.array([guess]))[0]
            drawn = [x for x in guess if x >= 0]
            if chance == 0 or len(drawn) < 2:
                continue
            shares, said = sbv_plan.choose(p, q, drawn)
            assert sum(shares) == 1
            for token, share in zip(drawn, shares, strict=True):
                law[token] += chance * share
        if said is not None:
            assert list(law) == list(said)
            assert overlap(p, law) == bounds.LIMITS["plan"](p[None], q[None], siblings)[0]
    for seed in range(12):
        p, a = table(seed, 6)(()), table(900 + seed, 6)(())
        a = a * (np.arange(6) > 1)
        a = a / a.sum()
        scale, law = hull.exchanged(p, a, [0, 1])
        scales.add(scale)
        assert law.sum() == 1
        if p[:2].sum() > 0:
            assert list(law) == list(np.where(np.arange(6) < 2, scale * p, np.minimum(a, scale * p)))
            assert scale >= 1
    assert len(scales) > 6


def test_scale_of_a_tiny_fixed_mass_leaves_a_law() -> None:
    """p(T) below rounding, and zero."""
    for sure in (1e-20, 1e-300, 0.0):
        p, a = np.array([sure, 0.5, 0.5, 0.0]), np.array([0.0, 0.6, 0.3, 0.1])
        _, law = hull.exchanged(p, a, [0])
        assert np.all(law >= 0)
        assert law.sum() == pytest.approx(1, abs=1e-15)


def test_classes_and_thresholds_agree() -> None:
    """Two places share a class from their threshold on and not before; far places join no earlier than near ones."""
    for seed in range(6):
        p, q = table(2 * seed, 7)(()), table(2 * seed + 1, 7)(())
        plan = hull.plan(p, q, 3)
        for low, high in itertools.combinations(range(1, len(plan.order) + 1), 2):
            u = hull.threshold(plan, low, high)
            assert u == max(hull.threshold(plan, k, k + 1) for k in range(low, high))
            for shift in (Fraction(-1, 10**6), Fraction(1, 10**6)):
                if 0 <= u + shift < 1:
                    together = hull.segment(plan, low, u + shift) == hull.segment(plan, high, u + shift)
                    assert together is (shift > 0)


@pytest.mark.parametrize("siblings", [2, 4])
def test_one_pick_is_best_for_every_scaled_target(siblings: int) -> None:
    """min over S of w p(S) + 1 - q(S)^K is reached by the same law for all w <= 1."""
    p, q = correlated(3, 6, 1.5, 0.6)
    a = hull.plan(p, q, siblings).law
    sets = [np.array(mask) for mask in itertools.product([False, True], repeat=6)]
    for w in (0.1, 0.5, 0.9):
        limit = min(w * p[inside].sum() + 1 - q[inside].sum() ** siblings for inside in sets)
        assert np.minimum(w * p, a).sum() == pytest.approx(limit, abs=1e-12)


@pytest.mark.parametrize(("scale", "likeness"), [(3.0, 0.9), (3.0, 0.99), (15.0, 0.9), (1.0, 0.5)])
def test_large_row_reaches_the_limit(scale: float, likeness: float) -> None:
    p, q = correlated(11, 1000, scale, likeness)
    plan = hull.plan(p, q, 4)
    assert overlap(p, plan.law) == pytest.approx(bounds.iid(p, q, 4), abs=1e-9)
    assert abs(plan.law.sum() - 1) < 1e-12


@pytest.mark.parametrize(("scale", "likeness"), [(0.5, 0.9), (1.0, 0.99), (2.0, 0.99), (3.0, 0.9)])
def test_groups_lose_an_eighth_of_their_width(scale: float, likeness: float) -> None:
    """A support too wide to be planned token by token. Most is lost where every guess could be accepted."""
    p, q = correlated(13, 2 * _pick.MOST, scale, likeness)
    for siblings in (2, 4):
        loss = bounds.iid(p, q, siblings) - overlap(p, _pick.pick(p, q, siblings).law)
        assert -1e-12 < loss < 1.1 / (8 * _pick.FINENESS)
        if likeness == 0.99 and siblings == 4:
            assert loss > 0.5 / (8 * _pick.FINENESS), "these rows do not try the bound"


def test_large_row_picks_by_its_law() -> None:
    """Mean over u of the classes' laws, from the thresholds of all neighbours, is `a`."""
    p, q = correlated(12, 120, 3.0, 0.97)
    plan = hull.plan(p, q, 4)
    size = len(plan.order)
    cuts = np.array([1.0] + [hull.threshold(plan, k, k + 1) for k in range(1, size)] + [1.0])
    edges, law = np.unique(np.append(cuts, 0.0)), np.zeros(size)
    for low, high in itertools.pairwise(edges):
        active = np.nonzero(cuts > (low + high) / 2)[0]
        mass = np.diff(plan.L[active] ** 4)
        law += (high - low) * plan.q * np.repeat(mass / np.diff(plan.L[active]), np.diff(active))
    np.testing.assert_allclose(law, plan.a, rtol=0, atol=1e-13)
