"""csbv selects with uniforms: integrated exactly over them, its output law is the target's; wrong rules are not."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch

from draftproof import hull
from draftproof.draft import Draft, Tree
from draftproof.draws import DRAWS
from draftproof.law import overlap
from draftproof.rule import Verifier
from draftproof.theory.enumerate import drafts, expected_accepted, output_law, reduced, target_law
from draftproof.theory.transport import tree_limit
from draftproof.verify import VERIFIERS, csbv
from draftproof.verify._pick import pick, winner
from tests.support import gof
from tests.support.tables import as_float, cases, table

CSBV, IID = VERIFIERS["csbv"], DRAWS["iid"]
SHAPES = [*((tree, size) for tree, size, _ in cases(CSBV)), (Tree.paths(3, 2), 2), (Tree.paths(2, 3), 2)]
WIDE = [(tree, size) for tree, size in SHAPES if not tree.is_chain]


def named(shapes: list[tuple[Tree, int]]) -> list:
    return [pytest.param(*shape, id=f"{shape[0].parent}") for shape in shapes]


def models(seed: int, size: int, abstain: float = 0.0):
    return table(2 * seed, size), table(2 * seed + 1, size, abstain=abstain)


@pytest.mark.parametrize("abstain", [0.0, 0.4])
@pytest.mark.parametrize(("tree", "size"), named(SHAPES))
def test_output_law_is_the_targets(tree: Tree, size: int, abstain: float) -> None:
    """Rationals, no tolerance; a drafter that abstains ends some paths before others."""
    length = max(tree.depth[-1] + 1, 2)
    for seed in range(3):
        target, drafter = models(seed, size, abstain)
        assert output_law(CSBV, target, drafter, tree, IID, length) == target_law(target, length)


def test_output_law_in_floats() -> None:
    for seed in range(3):
        target, drafter = map(as_float, models(seed, 3))
        law, truth = output_law(CSBV, target, drafter, Tree.paths(2, 2), IID, 3), target_law(target, 3)
        assert max(abs(law.get(key, 0) - truth.get(key, 0)) for key in law.keys() | truth.keys()) < 1e-12


@pytest.mark.parametrize(("tree", "size"), named(WIDE))
def test_stop_and_next_are_laws(tree: Tree, size: int) -> None:
    for seed in range(2):
        draft, chance = reduced(CSBV, *drafts(*models(seed, size, 0.3), tree, IID, ()))
        assert chance.sum() == 1
        assert np.all(chance > 0)
        stop = CSBV.stop(draft)
        assert np.all(stop >= 0)
        assert np.all(stop.sum(axis=1) == 1)
        assert not np.any(stop[:, 1:][draft.tokens[:, 1:] < 0])


def floats(draft: Draft) -> Draft:
    return Draft(draft.tree, draft.tokens, draft.q.astype(np.float64), draft.p.astype(np.float64))


def one(draft: Draft, b: int, times: int = 1) -> Draft:
    return Draft(draft.tree, *(np.repeat(array[b : b + 1], times, axis=0) for array in draft[1:4]))


def test_cells_are_the_integral_over_the_uniforms() -> None:
    """Random uniforms choose each path as often as the exact weights say, where a draft leaves a choice."""
    chance = np.random.default_rng(1)
    tree, choices = Tree.paths(3, 2), 0
    for _ in range(8):
        p, q = chance.dirichlet(np.ones(4), (2, 1, tree.size))
        q = 0.7 * p + 0.3 * q  # a good drafter: classes are wide, so that ties are common
        q[:, 4:] = 0
        draft = Draft(tree, np.array([[-1, 0, 1, 2, *chance.integers(4, size=3)]]), q, p)
        weights: Counter = Counter()
        for u, weight in csbv.cells(draft):
            weights[tuple(csbv.select(draft, u[None]).nodes[0].tolist())] += weight
        assert sum(weights.values()) == pytest.approx(1, abs=1e-12)
        if min(weights.values()) > 0.02 and len(weights) > 1:
            choices += 1
            sampled = csbv.select(one(draft, 0, 600), chance.random((600, CSBV.uniforms(tree))))
            gof.check(Counter(map(tuple, sampled.nodes.tolist())), weights)
    assert choices > 3


def test_torch_selects_the_same() -> None:
    draft = floats(drafts(*models(3, 3), Tree.paths(2, 2), IID, ())[0])
    u = np.random.default_rng(2).random((len(draft.tokens), CSBV.uniforms(draft.tree)))
    ours = csbv.select(draft, u)
    theirs = csbv.select(Draft(draft.tree, *map(torch.from_numpy, draft[1:4])), torch.from_numpy(u))
    assert np.array_equal(ours.nodes, theirs.nodes.numpy())
    assert ours.chain.tree == theirs.chain.tree == Tree.chain(2)
    for a, b in zip(ours.chain[1:4], theirs.chain[1:4], strict=True):
        assert np.array_equal(a, b.numpy())


@pytest.mark.parametrize(("tree", "size"), named([(Tree.paths(3, 2), 2), (Tree.paths(2, 3), 2)]))
def test_carrying_ties_pays(tree: Tree, size: int) -> None:
    """Accepted length against sbv and against the best pick level by level: never below here, above somewhere."""
    gains = []
    for seed in range(12):
        target, drafter = map(as_float, models(seed, size))
        high, middle, low = (
            expected_accepted(VERIFIERS[name], target, drafter, tree, IID) for name in ("csbv", "sbv", "optimal")
        )
        gains.append((high - middle, middle - low))
    assert np.min(gains) > -1e-12
    assert np.all(np.max(gains, axis=0) > 1e-3)


def softmax_model(seed: int, size: int, base=None, mix: float = 0.0):
    """Rows without zeros, mixed with another model's."""

    @cache
    def row(context: tuple[int, ...]) -> np.ndarray:
        weights = np.exp(1.2 * np.random.default_rng([seed, size, len(context), *context]).standard_normal(size))
        own = weights / weights.sum()
        return own if base is None else (1 - mix) * own + mix * base(context)

    return row


@pytest.mark.parametrize(
    ("size", "width", "length", "mix"),
    [(2, 2, 2, 0.5), (3, 2, 2, 0.5), (2, 3, 2, 0.3), (2, 2, 3, 0.5), (3, 2, 2, 0.0), (3, 2, 2, 0.8)],
)
def test_share_of_the_best_possible(size: int, width: int, length: int, mix: float) -> None:
    """Accepted length over the linear program's optimum of all exact rules: nothing above it, csbv near it."""
    target = softmax_model(0, size)
    drafter, tree = softmax_model(1, size, target, mix), Tree.paths(width, length)
    limit = tree_limit(target, drafter, tree, IID)
    share = {
        name: expected_accepted(VERIFIERS[name], target, drafter, tree, IID) / limit
        for name in ("csbv", "sbv", "traversal_iid", "gbv", "optimal")
    }
    assert max(share.values()) <= 1 + 1e-9
    assert share["csbv"] > 0.97
    assert share["sbv"] > 0.94
    assert share["sbv"] >= share["optimal"] - 1e-12
    assert share["csbv"] >= share["traversal_iid"]


def caught(mutant: Verifier, tree: Tree, size: int) -> bool:
    length = tree.depth[-1] + 1
    pairs = [models(seed, size) for seed in range(8)]
    return any(output_law(mutant, p, q, tree, IID, length) != target_law(p, length) for p, q in pairs)


def test_selection_verified_with_q_is_caught() -> None:
    def select(draft: Draft, u):
        found = csbv.select(draft, u)
        q = np.stack([draft.q[np.arange(len(u)), node] for node in found.nodes.T], axis=1)
        return found._replace(chain=found.chain._replace(q=q))

    assert caught(CSBV._replace(select=select), Tree.paths(2, 1), 3)


def test_survivors_of_another_class_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths whose class ends where the winner's does, though it starts elsewhere."""
    honest = csbv.survivors

    def survivors(intervals, v):
        high = intervals[honest(intervals, v)[0]][1]
        return [j for j in intervals if intervals[j][1] == high]

    monkeypatch.setattr(csbv, "survivors", survivors)
    assert caught(CSBV, Tree.paths(2, 2), 2)


def test_plans_for_the_first_number_of_paths_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deeper levels planned for all K paths although fewer are alive."""
    monkeypatch.setattr(csbv, "pick", lambda p, q, k: pick(p, q, 3))
    assert caught(CSBV, Tree.paths(3, 2), 2)


@pytest.mark.parametrize("width", [2, 3])
def test_grouped_plans_are_exact(width: int) -> None:
    """With all tokens forced into groups by p/q: the pick's law is still what the plan says, and its mass is one."""
    grouped = 0
    for seed in range(12):
        p, q = (model(()) for model in models(seed, 5))
        plan = pick(p, q, width, most=1)
        law = q * 0
        for guesses in itertools.product(np.flatnonzero(q).tolist(), repeat=width):
            chance = np.prod(q[list(guesses)])
            for token, share in zip(guesses, winner(plan, list(guesses)), strict=True):
                law[token] += chance * share
        assert list(law) == list(plan.law)
        assert law.sum() == 1
        grouped += len(plan.plan.order) < np.count_nonzero(q)
    assert grouped > 3, "no two tokens shared a group: the test saw nothing"


def test_grouping_costs_next_to_nothing() -> None:
    chance = np.random.default_rng(3)
    scores = chance.standard_normal((2, 4000))
    scores[1] = 0.9 * scores[0] + 0.44 * scores[1]
    p, q = np.exp(1.5 * scores) / np.exp(1.5 * scores).sum(axis=1, keepdims=True)
    best = overlap(p, hull.plan(p, q, 4).law)
    assert 0 <= best - overlap(p, pick(p, q, 4).law) < 2e-4


def test_fractions_stay_fractions() -> None:
    draft, _ = drafts(*models(3, 2), Tree.paths(2, 2), IID, ())
    for u, weight in csbv.cells(one(draft, 1)):
        assert isinstance(weight, Fraction)
        assert all(isinstance(number, Fraction) for number in u)
