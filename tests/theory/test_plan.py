"""Plans: closed forms beside scans, the heap beside the recursion it replaces, errors beside repetition."""

from __future__ import annotations

import itertools
import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.draft import Node, Tree, as_tree, grow
from draftproof.errors import DraftproofError
from draftproof.law import overlap
from draftproof.theory import bounds, plan
from draftproof.theory.plan import Costs, Estimate, Seconds

GOLDEN = json.loads((Path(__file__).parents[1] / "data/golden.json").read_text())
FLAT = Costs(Seconds(0.1), {1: Seconds(1.0)})  # a call takes the same for any number of tokens
RISING = Costs(Seconds(0.05), {1: Seconds(1.0), 9: Seconds(1.2), 33: Seconds(2.6)})

share = st.floats(0.01, 0.99)


# One acceptance for all guesses


@pytest.mark.parametrize("row", GOLDEN["gamma"])
def test_golden_lengths(row):
    alpha, cost = row["alpha"], row["c"]
    assert plan.best_length(alpha, cost) == plan.best_length_closed(alpha, cost) == row["gamma"]
    assert plan.speedup(alpha, row["gamma"], cost) == pytest.approx(row["speedup"], abs=1e-12)


@given(share, st.floats(1e-4, 1.5))
def test_closed_form_is_the_scan(alpha, cost):
    scanned, closed = plan.best_length(alpha, cost, most=10_000), plan.best_length_closed(alpha, cost)
    assert plan.speedup(alpha, closed, cost) == pytest.approx(plan.speedup(alpha, scanned, cost), rel=1e-12)
    if alpha > cost:
        assert plan.speedup(alpha, closed, cost) >= (1 + alpha) / (1 + cost) - 1e-12
    else:
        assert closed == 0


@given(share, st.floats(0.001, 1.5))
def test_one_peak(alpha, cost):
    best = plan.best_length(alpha, cost)
    values = [plan.speedup(alpha, length, cost) for length in range(best + 20)]
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(values[: best + 1]))
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(values[best:]))


def test_certain_acceptance_and_free_drafts():
    assert plan.tokens_per_call(1.0, 7) == 8
    assert plan.tokens_per_call(1 - 1e-9, 7) == pytest.approx(8, abs=1e-6)
    assert plan.best_length(1.0, 0.1, most=50) == plan.best_length(0.5, 0.0, most=50) == 50
    assert plan.speedup(1.0, 10**9, 0.1) == pytest.approx(10, rel=1e-6)  # 1 / cost
    assert plan.speedup(0.8, 200, 0.0) == pytest.approx(5, rel=1e-12)  # 1 / (1 - alpha)
    assert plan.best_length_closed(0.5, 1e-5) == plan.best_length(0.5, 1e-5)  # exp(-s) is 0 in floating point


# Measured acceptance and time


def exactly(*values: float) -> Estimate:
    """An estimate without error."""
    return Estimate.of([values, values])


def test_estimate_is_mean_and_standard_error():
    rows = np.random.default_rng(1).normal(size=(40, 3)) @ np.diag([1, 2, 3]) + 1e6
    made = Estimate.of(rows)
    np.testing.assert_allclose(made.mean, rows.mean(axis=0))
    np.testing.assert_allclose(made.covariance, np.cov(rows.T) / 40, rtol=1e-6)
    np.testing.assert_allclose(made.error, rows.std(axis=0, ddof=1) / math.sqrt(40), rtol=1e-6)
    assert np.isnan(Estimate.of(rows[:1]).error).all()


def test_time_between_measured_sizes_is_on_the_line():
    assert RISING.call(9).mean == 1.2
    assert RISING.call(5).mean == pytest.approx(1.1)
    assert RISING.call(21).mean == pytest.approx(1.9)
    assert RISING.call(45).mean == pytest.approx(3.3)
    assert FLAT.call(17).mean == 1.0
    assert Costs(Seconds(0.1), {1: Seconds(1.0), 2: Seconds(0.5)}).call(9).mean == 0.5  # not below what was seen
    assert RISING.step(Tree.paths(2, 4)).mean == pytest.approx(1.2 + 4 * 0.05)


def test_time_is_a_median_with_its_error():
    assert Seconds.of([1.0, 1.0, 1.0, 50.0]).mean == 1.0
    times = np.random.default_rng(2).normal(5, 0.1, size=(400, 25))
    medians = [Seconds.of(row) for row in times]
    assert np.mean([m.error for m in medians]) == pytest.approx(np.std([m.mean for m in medians]), rel=0.15)


@given(share)
def test_equal_acceptance_gives_the_closed_forms_length(alpha):
    chosen = plan.best_paths(exactly(*(alpha**i for i in range(1, 41))), FLAT)
    length = min(plan.best_length(alpha, 0.1), 40)
    assert chosen.speedup == pytest.approx(plan.speedup(alpha, length, 0.1))
    assert chosen.error == pytest.approx(0, abs=1e-9)


def test_dear_calls_make_short_chains():
    reached = exactly(0.8, 0.6, 0.5, 0.4)
    assert plan.best_paths(reached, FLAT).tree == Tree.chain(4)
    dear = Costs(Seconds(0.1), {1: Seconds(1.0), 2: Seconds(1.3), 5: Seconds(4.0)})
    assert plan.best_paths(reached, dear).tree == Tree.chain(1)
    hopeless = Costs(Seconds(1.0), {1: Seconds(1.0)})
    assert plan.best_paths(reached, hopeless) == (Tree.chain(0), 1.0, 1.0, 1.0, 0.0)
    assert plan.best_paths(reached, FLAT, width=3).tree == Tree.paths(3, 4)


def test_error_of_a_speedup_is_its_spread_over_repetitions():
    random, found = np.random.default_rng(3), []
    for _ in range(300):
        first = random.random(200) < 0.7
        second = first & (random.random(200) < 0.6)
        reached = Estimate.of(np.stack([first, second], axis=1).astype(float))
        clock = Costs(Seconds(random.normal(0.1, 0.01), 0.01), {1: Seconds(random.normal(1, 0.02), 0.02)})
        covariance = float(reached.covariance.sum())
        found.append(plan.promise(Tree.chain(2), 1 + float(reached.mean.sum()), covariance, clock))
    # plain and drafted calls share the target's time here, which the plan cannot know: it errs on the safe side
    spread = np.std([p.speedup for p in found])
    assert spread < np.mean([p.error for p in found]) < 1.6 * spread


# Trees


@cache
def best_by_recursion(acc: tuple[float, ...], nodes: int, depth: int) -> float:
    """Sequoia's recursion: the root counts one, its children share the other nodes among their subtrees."""

    @cache
    def below(rank: int, left: int, depth: int) -> float:
        if left == 0 or rank == len(acc) or depth == 0:
            return 0.0
        return max(
            acc[rank] * best_by_recursion(acc, mine, depth - 1) + below(rank + 1, left - mine, depth)
            for mine in range(1, left + 1)
        )

    return 1 + below(0, nodes - 1, depth)


@pytest.mark.parametrize("depth", [1, 2, 4, 9])
def test_heap_is_the_recursion(depth):
    random = np.random.default_rng(depth)
    for _ in range(6):
        acc = tuple(np.sort(random.dirichlet(np.ones(4))[:3])[::-1].tolist())
        nodes = grow(acc, 14, depth)
        for size in range(1, len(nodes) + 1):
            total = sum(node.value for node in nodes[:size])
            assert total == pytest.approx(best_by_recursion(acc, size, depth), rel=1e-12)


def test_grown_nodes_form_a_tree_numbered_by_levels():
    nodes = grow([0.6, 0.2, 0.1], 20, 3)
    tree = as_tree(nodes)
    assert tree.size == 20
    assert max(tree.depth) == 3
    assert list(tree.depth) == sorted(tree.depth)
    assert list(tree.parent) == sorted(tree.parent)
    assert as_tree([Node((), 1.0), Node((0,), 0.6), Node((0, 0), 0.36), Node((1,), 0.2)]).parent == (-1, 0, 0, 1)
    assert as_tree(grow([0.5], 6, 9)) == Tree.chain(5)


def test_one_sibling_is_a_chain_of_the_best_length():
    for alpha in (0.3, 0.6, 0.9):
        chosen = plan.best_tree([alpha], FLAT, most=64, depth=40)
        assert chosen.tree == Tree.chain(plan.best_length(alpha, 0.1))


def test_tree_is_the_best_of_all_sizes_and_depths():
    acc = [0.55, 0.2, 0.1]
    chosen = plan.best_tree(acc, RISING, most=20, depth=6)
    rates = [
        sum(node.value for node in nodes[:size]) / RISING.step(as_tree(nodes[:size])).mean
        for nodes in (grow(acc, 20, depth) for depth in range(7))
        for size in range(1, len(nodes) + 1)
    ]
    assert chosen.rate == pytest.approx(max(rates))
    assert chosen.tree.size > 4
    dear = Costs(Seconds(0.05), {1: Seconds(1.0), 2: Seconds(2.0)})
    assert plan.best_tree(acc, dear).tree == Tree.chain(0)


def test_error_of_a_tree_follows_its_slope():
    acc, change = [0.55, 0.2, 0.1], 1e-6
    chosen = plan.best_tree(acc, RISING, covariance=np.diag([1e-4, 4e-4, 0.0]))
    nodes = next(n for d in range(17) if as_tree(n := grow(acc, chosen.tree.size, d)) == chosen.tree)

    def tokens(rates: list[float]) -> float:
        return sum(math.prod(rates[rank] for rank in node.place) for node in nodes)

    slope = [(tokens([a + change * (i == k) for i, a in enumerate(acc)]) - tokens(acc)) / change for k in range(3)]
    spread = math.sqrt(1e-4 * slope[0] ** 2 + 4e-4 * slope[1] ** 2)
    assert chosen.error == pytest.approx(chosen.speedup * spread / chosen.tokens, rel=1e-4)


def test_siblings_out_of_order_are_refused():
    with pytest.raises(DraftproofError, match=r"must not increase, not \[0\.2, 0\.5\]"):
        grow([0.2, 0.5], 4, 2)


def test_acceptance_by_sibling():
    assert plan.by_sibling({1: 0.5, 2: 0.7, 4: 0.8}) == pytest.approx([0.5, 0.2, 0.05, 0.05])
    assert plan.by_sibling({1: 0.5, 2: 0.4}) == [0.5, 0.0]
    assert plan.by_sibling({1: 0.2, 2: 0.9}) == [0.2, 0.2]


# Temperature


def laws(scale: float) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    scores = random.normal(size=(30, 40)) * 2
    other = scores + random.normal(size=scores.shape)
    p, q = (np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True) for x in (scores, other * scale))
    return p, q


def test_tempering_is_division_of_logits():
    p, _ = laws(1)
    hot = p**0.5 / (p**0.5).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(plan.tempered(p, 2.0), hot)
    sparse = np.array([[0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    np.testing.assert_array_equal(plan.tempered(sparse, 3.0), sparse)


def test_the_best_temperature_undoes_a_wrong_one():
    p, q = laws(1)
    assert plan.best_draft_temperature(p, plan.tempered(p, 0.5)) == pytest.approx(2, abs=0.01)
    best = plan.best_draft_temperature(p, q)
    assert plan.best_draft_temperature(p, plan.tempered(q, 0.5)) == pytest.approx(2 * best, rel=0.02)
    grid = np.geomspace(0.25, 4, 60)
    means = [overlap(p, plan.tempered(q, factor)).mean() for factor in grid]
    assert overlap(p, plan.tempered(q, best)).mean() >= max(means) - 1e-5
    assert plan.by_temperature(p, q, 3, [1.0])[0] == pytest.approx(bounds.iid(p, q, 3).mean())


def test_more_guesses_like_it_hotter():
    p, q = laws(1)
    assert plan.best_draft_temperature(p, q, 4) > plan.best_draft_temperature(p, q, 1)
