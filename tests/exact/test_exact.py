"""Every registered verifier, judged by its law: what several steps emit equals the target's law, tolerance zero."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from draftproof.draft import Draft, Tree
from draftproof.draws import DRAWS, Draw
from draftproof.law import overlap
from draftproof.rule import Verifier
from draftproof.theory.enumerate import drafts, expected_accepted, output_law, target_law
from draftproof.verify import VERIFIERS
from tests.support.tables import SHAPES, Model, cases, table

RULES = [verifier for verifier in VERIFIERS.values() if verifier.select is None]
CASES = [pytest.param(v, *case, id=f"{v.name}-{case[2].name}-{case[0].parent}") for v in RULES for case in cases(v)]


def instances(verifier: Verifier) -> range:
    """Seeds of the tables for each case, so that every verifier is tried on more than fifty."""
    return range(max(3, -(-54 // len(list(cases(verifier))))))


def models(seed: int, size: int, abstain: float = 0.0) -> tuple[Model, Model]:
    """A target and a drafter that have nothing to do with each other."""
    return table(2 * seed, size), table(2 * seed + 1, size, abstain=abstain)


@pytest.mark.parametrize(("verifier", "tree", "size", "draw"), CASES)
def test_output_law_is_the_targets(verifier: Verifier, tree: Tree, size: int, draw: Draw) -> None:
    """Joint law of depth + 1 tokens: whatever stops early is followed by a second and a third step."""
    length = tree.depth[-1] + 1
    for seed in instances(verifier):
        target, drafter = models(seed, size)
        law = output_law(verifier, target, drafter, tree, draw, max(length, 2))
        assert law == target_law(target, max(length, 2))


@pytest.mark.parametrize(("verifier", "tree", "size", "draw"), CASES)
def test_output_law_with_a_drafter_that_abstains(verifier: Verifier, tree: Tree, size: int, draw: Draw) -> None:
    """Uneven drafts: at half of the contexts there is no guess, so tokens are -1 and rows of q are zero."""
    uneven = False
    for seed in range(4):
        target, drafter = models(seed, size, abstain=0.5)
        uneven |= bool(np.any(drafts(target, drafter, tree, draw, ())[0].tokens[:, 1:] < 0))
        length = tree.depth[-1] + 1
        law = output_law(verifier, target, drafter, tree, draw, length)
        assert law == target_law(target, length)
    assert uneven, "no draft of these tables was uneven: the test saw nothing"


@pytest.mark.parametrize(("verifier", "tree", "size", "draw"), CASES)
def test_stop_and_next_are_laws(verifier: Verifier, tree: Tree, size: int, draw: Draw) -> None:
    """For every single draft, not only on average over the drafts: rows are non-negative and sum to one, and no undrawn
    guess is accepted."""
    for seed in range(5):
        draft, _ = drafts(*models(seed, size, abstain=0.3), tree, draw, ())
        stop = verifier.stop(draft)
        assert np.all(stop >= 0)
        assert np.all(stop.sum(axis=1) == 1)
        assert not np.any(stop[:, 1:][draft.tokens[:, 1:] < 0])
        for node in range(tree.size):
            law = verifier.next(draft, np.full(len(stop), node))[stop[:, node] > 0]
            assert np.all(law >= 0)
            assert np.all(law.sum(axis=1) == 1)


def best_acceptance(draft: Draft, chance: np.ndarray) -> Fraction:
    """min over sets S of p(S) + P(some guess outside S): no rule accepts one of the guesses more often (min cut)."""
    p, size = draft.p[0, 0], draft.p.shape[-1]
    guesses = [frozenset(tokens) - {-1} for tokens in draft.tokens[:, 1:].tolist()]
    sets = itertools.chain.from_iterable(itertools.combinations(range(size), n) for n in range(size + 1))
    return min(
        sum((p[t] for t in inside), Fraction(0))
        + sum((c for g, c in zip(guesses, chance, strict=True) if not g <= set(inside)), Fraction(0))
        for inside in sets
    )


STARS = [case for case in CASES if case.values[1].is_star]


@pytest.mark.parametrize(("verifier", "tree", "size", "draw"), STARS)
def test_acceptance_never_beats_the_bound(verifier: Verifier, tree: Tree, size: int, draw: Draw) -> None:
    """A rule above the optimum is wrong, however plausible its output looks."""
    for seed in instances(verifier):
        target, drafter = models(seed, size)
        bound = best_acceptance(*drafts(target, drafter, tree, draw, ()))
        assert expected_accepted(verifier, target, drafter, tree, draw) <= bound


@pytest.mark.parametrize("draw", [DRAWS["iid"], DRAWS["distinct"]], ids=lambda draw: draw.name)
def test_bound_of_one_draft_is_the_overlap(draw: Draw) -> None:
    for seed in range(18):
        target, drafter = models(seed, 3)
        bound = best_acceptance(*drafts(target, drafter, Tree.chain(1), draw, ()))
        assert bound == overlap(target(()), drafter(()))
        assert bound == expected_accepted(VERIFIERS["token"], target, drafter, Tree.chain(1), DRAWS["iid"])


CHAINS = [case for case in CASES if case.values[1].is_chain and case.values[3].name == "iid"]


@pytest.mark.parametrize(("verifier", "tree", "size", "draw"), CHAINS)
def test_nothing_beats_block_on_a_chain(verifier: Verifier, tree: Tree, size: int, draw: Draw) -> None:
    """Block verification is optimal for one path, so every other rule's expected accepted length stays at or below."""
    for seed in instances(verifier):
        target, drafter = models(seed, size)
        best = expected_accepted(VERIFIERS["block"], target, drafter, tree, draw)
        assert expected_accepted(verifier, target, drafter, tree, draw) <= best


PAIRS = [
    pytest.param(better, VERIFIERS[worse], id=f"{better.name}-{worse}")
    for better in RULES
    for worse in sorted(better.dominates)
]


@pytest.mark.parametrize(("better", "worse"), PAIRS)
def test_declared_dominance(better: Verifier, worse: Verifier) -> None:
    """Expected accepted length never falls below, and is above it somewhere: otherwise the claim says nothing."""
    gain = Fraction(0)
    for tree, size in (*SHAPES, (Tree((-1, 0, 1, 1, 3)), 2)):  # the last: only the younger of two siblings has a child
        if not (better.accepts(tree) and worse.accepts(tree)):
            continue
        for name in sorted(better.draws & worse.draws):
            for seed in range(10):
                target, drafter = models(seed, size)
                high, low = (expected_accepted(v, target, drafter, tree, DRAWS[name]) for v in (better, worse))
                assert high >= low
                gain = max(gain, high - low)
    assert gain > 0


def test_worked_example_of_the_literature() -> None:
    """p = (1/3, 2/3), q = (2/3, 1/3), two draft tokens: token accepts 10/9, block 11/9."""
    third = Fraction(1, 3)
    target, drafter = (lambda c: np.array([third, 2 * third])), (lambda c: np.array([2 * third, third]))
    accepted = {
        name: expected_accepted(VERIFIERS[name], target, drafter, Tree.chain(2), DRAWS["iid"])
        for name in ("token", "block")
    }
    assert accepted == {"token": Fraction(10, 9), "block": Fraction(11, 9)}
