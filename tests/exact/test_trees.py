"""Tree rules: shapes beyond those of the registry's tests, what the rules reduce to, and variants that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch

from draftproof.draft import Draft, Tree
from draftproof.draws import DRAWS, Draw, rest, tops
from draftproof.law import divide, normalise, positive
from draftproof.rule import Verifier
from draftproof.theory.enumerate import drafts, expected_accepted, output_law, step_law, target_law
from draftproof.verify import (
    VERIFIERS,
    _paths,
    _select,
    block,
    gbv,
    kseq,
    naive,
    nodeplan,
    optimal,
    recursive,
    sbv,
    sbv_plan,
    traversal,
)
from draftproof.verify._merge import apart, contexts, guesses
from draftproof.verify._topdown import top_down
from tests.support.tables import table

BLOCK, IID, DISTINCT = VERIFIERS["block"], DRAWS["iid"], DRAWS["distinct"]
SEEDS = range(6)


def biased(verifier: Verifier, tree: Tree, size: int, draw: str, length: int) -> bool:
    """Whether the output law differs from the target's on any of a handful of tables."""
    pairs = [(table(2 * seed, size), table(2 * seed + 1, size)) for seed in SEEDS]
    return any(output_law(verifier, p, q, tree, DRAWS[draw], length) != target_law(p, length) for p, q in pairs)


LARGER = {
    "two by two": (Tree.of(2, 2), 2),
    "younger twin": (Tree((-1, 0, 0, 2)), 2),  # of two equal siblings only the second has a child
    "three paths": (Tree.paths(3, 2), 2),
    "three tokens": (Tree.paths(2, 2), 3),
    "long paths": (Tree.paths(2, 3), 2),
}


EVERYWHERE = ("traversal", "traversal_iid", "sbv", "sbv_plan", "recursive", "optimal")
ON_PATHS = ("gbv", "naive", "kseq", "optimal_binned", "importance", "match", "onehot", "nodeplan")


@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, shape) for name in EVERYWHERE for shape in LARGER]
    + [(name, "three paths") for name in ON_PATHS]
    + [("gbv", "three tokens")],
)
def test_larger_trees_are_exact(name: str, shape: str) -> None:
    """Rationals, no tolerance; two steps at least. Drawn independently where the rule allows it: paths may be equal."""
    (tree, size), verifier = LARGER[shape], VERIFIERS[name]
    draw = "iid" if "iid" in verifier.draws else min(verifier.draws)
    for seed in (1,) if size == 3 else (1, 4):
        target, drafter = table(2 * seed, size), table(2 * seed + 1, size, abstain=0.1)
        assert output_law(verifier, target, drafter, tree, DRAWS[draw], 3) == target_law(target, 3)


@pytest.mark.parametrize("name", ["traversal", "traversal_iid", "sbv", "sbv_plan", "gbv"])
def test_on_a_chain_it_is_block_verification(name: str) -> None:
    """Not only in the mean: the same law for every draft."""
    for seed in SEEDS:
        draft, _ = drafts(table(2 * seed, 3), table(2 * seed + 1, 3, abstain=0.2), Tree.chain(3), IID, ())
        stop = BLOCK.stop(draft)
        assert np.array_equal(VERIFIERS[name].stop(draft), stop)
        for node in range(4):
            reached = stop[:, node] > 0
            ours, theirs = (v.next(draft, np.full(len(stop), node))[reached] for v in (VERIFIERS[name], BLOCK))
            assert np.array_equal(ours, theirs)


P, Q = ([Fraction(n, 20) for n in row] for row in ((2, 5, 1, 8, 4), (6, 4, 5, 3, 2)))


@pytest.mark.parametrize(
    ("name", "width", "accepted"),
    [("sbv", 2, "67/80"), ("sbv", 3, "313/320"), ("gbv", 2, "67/80"), ("gbv", 3, "151/160"), ("gbv", 4, "1173/1280")],
)
def test_worked_example(name: str, width: int, accepted: str) -> None:
    """One step of K paths: sbv meets the limit of i.i.d. guesses; gbv takes the best ratio and falls behind it."""
    found = expected_accepted(VERIFIERS[name], lambda c: np.array(P), lambda c: np.array(Q), Tree.star(width), IID)
    assert found == Fraction(accepted)


def test_contexts_are_merged() -> None:
    tokens = np.array([[9, 4, 4, 4, 7, 8, 7], [9, 1, 2, 3, 7, 7, 7], [9, 5, -1, 5, 6, -1, 6]])
    rows = np.zeros((3, 7, 10))
    first, home, row = contexts(Draft(Tree.paths(3, 2), tokens, rows, rows))
    assert first.tolist() == [[0, 1, 1, 1, 4, 5, 4], [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 1, 4, 5, 4]]
    assert home.tolist() == [[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 2, 3], [0, 0, 0, 0, 1, 2, 1]]
    assert row.tolist() == [[0, 3, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6], [0, 3, 2, 3, 4, 5, 6]]


def test_guesses_after_a_context() -> None:
    """Children of twins in draw order, undrawn ones left out; none after a node that repeats an earlier path."""
    tokens = np.array([[9, 4, 4, 4, 7, 8, 7], [9, 1, 2, 3, 7, 7, 7], [9, 5, -1, 5, 6, -1, 6]])
    rows = np.zeros((3, 7, 10))
    draft = Draft(Tree.paths(3, 2), tokens, rows, rows)
    first = guesses(draft, contexts(draft), np.array([1, 1, 1]))
    assert first.nodes.tolist() == [[4, 5, 6], [4, 0, 0], [4, 6, 0]]
    assert first.tokens.tolist() == [[7, 8, 7], [7, -1, -1], [6, 6, -1]]
    assert first.rows.tolist() == [3, 1, 3]
    third = guesses(draft, contexts(draft), np.array([3, 3, 3]))
    assert third.tokens.tolist() == [[-1], [7], [-1]]
    alone = guesses(draft, apart(draft), np.array([3, 3, 3]))
    assert alone.tokens.tolist() == [[7], [7], [6]]


def test_merging_accepts_more() -> None:
    """Guesses below equal paths serve one another: on paths, traversal beats the same rule without merging."""
    tree, gain = Tree.paths(2, 2), []
    for seed in SEEDS:
        target, drafter = table(2 * seed, 2), table(2 * seed + 1, 2)
        merged = expected_accepted(VERIFIERS["traversal_iid"], target, drafter, tree, IID)
        gain.append(merged - expected_accepted(by_the_book(good_update, replace=True), target, drafter, tree, IID))
    assert min(gain) >= 0
    assert max(gain) > 0


@pytest.mark.parametrize(
    ("name", "other", "draw"), [("traversal", "recursive_distinct", DISTINCT), ("traversal_iid", "recursive", IID)]
)
def test_upward_accepts_more_than_downward_where_no_elder_has_less_below(name: str, other: str, draw: Draw) -> None:
    """Where only the younger of two siblings has a child, the elder may be taken in its place: no dominance."""

    def gain(tree: Tree, size: int, seed: int) -> Fraction:
        pair = table(2 * seed, size), table(2 * seed + 1, size)
        up, down = (expected_accepted(VERIFIERS[v], *pair, tree, draw) for v in (name, other))
        return up - down

    shapes = (Tree.of(1, 2, 1), 2), (Tree((-1, 0, 1, 1, 2)), 2), (Tree((-1, 0, 0, 1)), 3)
    gains = [gain(tree, size, seed) for tree, size in shapes for seed in SEEDS]
    assert min(gains) >= 0
    assert max(gains) > 0
    assert gain(Tree((-1, 0, 1, 1, 3)), 3, seed=16) < 0
    assert other not in VERIFIERS[name].dominates


@pytest.mark.parametrize("name", ["naive", "recursive", "kseq", "optimal"])
def test_merging_accepts_more_level_by_level(name: str) -> None:
    """As a rule for one step, so for all: guesses after equal paths are siblings."""
    rule = {"naive": naive, "recursive": recursive, "kseq": kseq, "optimal": optimal}[name].rule
    separate = VERIFIERS[name]._replace(**top_down(rule, merge=apart)._asdict())
    gain = []
    for seed in SEEDS:
        pair = table(2 * seed, 2), table(2 * seed + 1, 2)
        gain.append(expected_accepted(VERIFIERS[name], *pair, Tree.paths(2, 2), IID))
        gain[-1] -= expected_accepted(separate, *pair, Tree.paths(2, 2), IID)
    assert min(gain) >= 0
    assert max(gain) > 0


@pytest.mark.parametrize("name", ["nodeplan", "sbv_plan"])
def test_merging_planned_guesses_is_caught(name: str) -> None:
    """Two guesses from a flat row may be equal; the guess below each was drawn alone, so neither was fixed."""
    flat, peaked = (np.array([Fraction(n, 12) for n in row]) for row in ((4, 4, 4), (6, 3, 3)))
    merged = top_down(nodeplan.rule) if name == "nodeplan" else _select.selected(sbv_plan.choose)
    for verifier, exact in (
        (VERIFIERS[name], True),
        (VERIFIERS[name]._replace(stop=merged.stop, next=merged.next), False),
    ):
        laws = [
            output_law(verifier, table(seed, 3), lambda c: peaked if c else flat, Tree.paths(2, 2), DRAWS["plan"], 2)
            for seed in (1, 2)
        ]
        assert (laws == [target_law(table(seed, 3), 2) for seed in (1, 2)]) is exact


# Traversal as the paper tells it, node after node with a law and a weight that change as children are refused. The
# rule of verify/traversal.py is the same thing in closed form; the wrong update is that of a public re-implementation.
Update = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # (w [B], left [B], mass of q left [B]) -> w [B]


def good_update(w: np.ndarray, left: np.ndarray, mass: np.ndarray) -> np.ndarray:
    return divide(left, left + 1 - w, otherwise=1)


def wrong_update(w: np.ndarray, left: np.ndarray, mass: np.ndarray) -> np.ndarray:
    ratio = divide(left, mass)
    return np.where(ratio < 1, ratio, 1)


def by_the_book(update: Update, replace: bool = False) -> Verifier:
    def visit(draft: Draft) -> tuple[np.ndarray, np.ndarray]:
        tree = draft.tree
        weight, chance, laws = [draft.p[:, 0, 0] * 0 + 1] * tree.size, [], []
        for node in range(tree.size):
            p, q, w = draft.p[:, node], draft.q[:, node], weight[node]
            for child in tree.children(node):
                x = draft.tokens[:, child]
                drawn, every = x >= 0, np.arange(len(x))
                law = normalise(q)
                ratio = divide(w * p[every, x], law[every, x])
                weight[child] = np.where(drawn, np.where(ratio < 1, ratio, 1), 0)
                left = positive(w[:, None] * p - law)
                q = q.copy()
                q[every, x] *= replace
                w = np.where(drawn, update(w, left.sum(axis=1), q.sum(axis=1)), w)
                p = np.where((drawn & (left.sum(axis=1) > 0))[:, None], normalise(left), p)
            chance.append(w if node else w * 0 + 1)
            laws.append(p)
        return np.stack(chance, axis=1), np.stack(laws, axis=1)

    def stop(draft: Draft) -> np.ndarray:
        home = np.broadcast_to(np.maximum(draft.tree.parent, 0), draft.tokens.shape)
        return traversal.upward(visit(draft)[0], home)

    def next(draft: Draft, node: np.ndarray) -> np.ndarray:
        return visit(draft)[1][np.arange(len(node)), node]

    return BLOCK._replace(name="by the book", trees="any", stop=stop, next=next)


@pytest.mark.parametrize(("tree", "size"), [(Tree.of(2, 1), 3), (Tree.of(2, 2), 2), (Tree.star(3), 4)])
def test_closed_form_is_the_recursion(tree: Tree, size: int) -> None:
    book = by_the_book(good_update)
    for seed in SEEDS:
        target, drafter = table(2 * seed, size), table(2 * seed + 1, size)
        ours, theirs = (step_law(v, target, drafter, tree, DISTINCT) for v in (VERIFIERS["traversal"], book))
        assert ours == theirs


def test_wrong_weight_update_is_caught() -> None:
    assert not biased(by_the_book(good_update), Tree.star(2), 3, "distinct", 2)
    assert biased(by_the_book(wrong_update), Tree.of(2, 1), 3, "distinct", 3)


def test_a_rule_for_other_draws_is_caught() -> None:
    assert biased(VERIFIERS["traversal"], Tree.star(2), 3, "iid", 2)
    assert biased(VERIFIERS["traversal_iid"], Tree.star(2), 3, "distinct", 2)
    assert biased(VERIFIERS["sbv"], Tree.star(2), 3, "distinct", 2)


def on_selection(select: Callable[[Draft], object]) -> Verifier:
    """Block verification of a selected path."""
    return BLOCK._replace(
        name="selected",
        trees="paths",
        stop=lambda draft: _paths.stop(draft, select(draft)),
        next=lambda draft, node: _paths.next(draft, select(draft), node),
    )


def best_path_with_q(draft: Draft):
    """The best path by p/q, verified as if it were the only one."""
    found = gbv.select(draft)
    plain = [draft.q[np.arange(len(found.nodes)), node] for node in found.nodes.T[:-1]]
    return _paths.chosen(draft, list(found.nodes.T), plain)


def longest_path_with_q(draft: Draft):
    """The path of which block verification accepts most, verified as if it were the only one."""
    width, length = len(draft.tree.children(0)), draft.tree.depth[-1]
    zero = draft.tokens[:, 0] * 0
    paths = [[zero, *(zero + 1 + d * width + j for d in range(length))] for j in range(width)]
    rows = [[draft.q[:, node[0]] for node in path[:-1]] for path in paths]
    gains = [block.weights(_paths.chosen(draft, *pair).chain).sum(axis=1) for pair in zip(paths, rows, strict=True)]
    best = np.argmax(np.stack(gains, axis=1), axis=1)
    nodes = [zero, *(best + 1 + d * width for d in range(length))]
    return _paths.chosen(draft, nodes, [draft.q[np.arange(len(best)), node] for node in nodes[:-1]])


@pytest.mark.parametrize("select", [best_path_with_q, longest_path_with_q])
def test_best_of_several_paths_verified_with_q_is_caught(select: Callable[[Draft], object]) -> None:
    assert not biased(on_selection(gbv.select), Tree.paths(2, 2), 2, "iid", 3)
    assert biased(on_selection(select), Tree.paths(2, 2), 2, "iid", 3)


def test_picks_verified_with_q_are_caught() -> None:
    """The law of the pick is the plan's `a`, not the law each guess was drawn from."""
    stop, next = _select.selected(lambda p, q, tokens: (sbv.choose(p, q, tokens)[0], q))
    assert biased(VERIFIERS["sbv"]._replace(stop=stop, next=next), Tree.star(2), 3, "iid", 2)


def test_picks_exchanged_unknown_to_the_law_are_caught() -> None:
    """A fixed guess may take the place of the pick, but the law said is that of the guesses drawn."""

    def choose(p: np.ndarray, q: np.ndarray, tokens: list[int]) -> tuple[list[Fraction], np.ndarray]:
        return sbv_plan.choose(p, q, tokens)[0], rest(q[None], tops(q[None], len(tokens)), len(tokens))[1][0]

    stop, next = _select.selected(choose, merge=apart)
    assert not biased(VERIFIERS["sbv_plan"], Tree.star(2), 3, "plan", 2)
    assert biased(VERIFIERS["sbv_plan"]._replace(stop=stop, next=next), Tree.star(2), 3, "plan", 2)


@pytest.mark.parametrize("name", ["token", "block", "traversal", "traversal_iid", "sbv", "sbv_plan", "gbv"])
def test_a_ratio_beyond_the_largest_float_is_one(name: str) -> None:
    """A guess of probability 1e-44 in float32 that the target finds likely, below a guess that it never makes."""
    p = torch.tensor([[[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]]])
    q = torch.tensor([[[1.0, 1e-44], [1e-44, 1.0], [0.0, 0.0]]])
    for tokens, accepted in (([0, 0, 0], [1, 0, 0]), ([0, 1, 0], [0, 0, 1])):
        draft = Draft(Tree.chain(2), torch.tensor([tokens]), q, p)
        assert VERIFIERS[name].stop(draft)[0].tolist() == pytest.approx(accepted, abs=1e-6)
