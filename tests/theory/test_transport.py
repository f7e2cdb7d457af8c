"""Linear programs: the transport is a minimal cut, picking one guess loses nothing, no rule beats the tree program."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from draftproof.draft import Tree
from draftproof.draws import DRAWS
from draftproof.law import overlap
from draftproof.theory import bounds
from draftproof.theory.enumerate import expected_accepted
from draftproof.theory.transport import decompose, guesses, transport, tree_limit
from draftproof.verify import VERIFIERS
from tests.support.tables import as_float, table


def pair(seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    return as_float(table(seed, size))(()), as_float(table(300 + seed, size))(())


@pytest.mark.parametrize("draw", sorted(DRAWS))
def test_transport_is_a_minimal_cut(draw: str) -> None:
    for seed in range(8):
        p, q = pair(seed, 4)
        law = guesses(q, DRAWS[draw], 2)
        assert sum(law.values()) == pytest.approx(1, abs=1e-12)
        sets = itertools.chain.from_iterable(itertools.combinations(range(4), n) for n in range(5))
        cuts = [sum(p[t] for t in s) + sum(c for g, c in law.items() if not g <= set(s)) for s in sets]
        plan = transport(p, law)
        assert plan.value == pytest.approx(min(cuts), abs=1e-9)
        received = [sum(sent.get(x, 0) for sent in plan.sent.values()) for x in range(4)]
        assert np.all(np.array(received) <= p + 1e-9)
        assert all(sum(plan.sent[g].values()) <= chance + 1e-9 for g, chance in law.items())


@pytest.mark.parametrize("draw", sorted(DRAWS))
def test_picking_one_guess_then_the_token_rule_reaches_the_optimum(draw: str) -> None:
    """The canonical decomposition, for every way of drawing: weights are laws, the overlap with p is the optimum."""
    for seed in range(12):
        p, q = pair(seed, 3 + seed % 3)
        law = guesses(q, DRAWS[draw], 2 + seed % 2)
        plan = transport(p, law)
        picks = decompose(p, law, plan)
        for inside, weight in picks.weights.items():
            assert weight.keys() == inside
            assert sum(weight.values()) == pytest.approx(1, abs=1e-12)
            assert min(weight.values()) >= 0
        again = sum(law[inside] * np.array([w.get(x, 0) for x in range(len(p))]) for inside, w in picks.weights.items())
        np.testing.assert_allclose(picks.a, again, rtol=0, atol=1e-12)
        assert overlap(p, picks.a) == pytest.approx(plan.value, abs=1e-9)


def test_tree_program_on_a_star_is_the_transport_and_on_a_chain_block_verification() -> None:
    for seed in range(4):
        target, drafter = as_float(table(seed, 3)), as_float(table(300 + seed, 3))
        best = transport(target(()), guesses(drafter(()), DRAWS["iid"], 2)).value
        assert tree_limit(target, drafter, Tree.star(2), DRAWS["iid"]) == pytest.approx(best, abs=1e-9)
        chain = tree_limit(target, drafter, Tree.chain(2), DRAWS["iid"])
        assert chain == pytest.approx(bounds.block(target, drafter, 2), abs=1e-9)


TREES = [Tree.paths(2, 2), Tree.of(1, 2), Tree((-1, 0, 0, 1))]


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: str(tree.parent))
def test_no_verifier_exceeds_the_tree_program(tree: Tree) -> None:
    """Every verifier that accepts the tree, on every way of drawing it is exact for; something is always gained."""
    for seed in range(3):
        target, drafter = as_float(table(seed, 2)), as_float(table(300 + seed, 2))
        for draw in DRAWS.values():
            limit = tree_limit(target, drafter, tree, draw)
            for verifier in VERIFIERS.values():
                if draw.name in verifier.draws and verifier.accepts(tree):
                    found = expected_accepted(verifier, target, drafter, tree, draw)
                    assert 0 <= found <= limit + 1e-9, (verifier.name, draw.name)
