"""The smallest cases: a vocabulary of one token, no draft token at all, one row in a batch."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from draftproof.draft import Draft, Tree
from draftproof.draws import DRAWS, Draw
from draftproof.rule import Verifier
from draftproof.theory.enumerate import output_law, target_law
from draftproof.verify import VERIFIERS
from tests.support.tables import SHAPES, table

ONE = np.array([Fraction(1)])
EVERY = [pytest.param(v, DRAWS[name], id=f"{name}-{v.name}") for v in VERIFIERS.values() for name in sorted(v.draws)]


@pytest.mark.parametrize(("verifier", "draw"), EVERY)
def test_a_vocabulary_of_one_token(verifier: Verifier, draw: Draw) -> None:
    for tree in [shape for shape, _ in SHAPES if verifier.accepts(shape)]:
        law = output_law(verifier, lambda context: ONE, lambda context: ONE, tree, draw, 3)
        assert law == {(0, 0, 0): 1}


@pytest.mark.parametrize(("verifier", "draw"), EVERY)
def test_a_draft_without_a_token(verifier: Verifier, draw: Draw) -> None:
    target = table(1, 3)
    law = output_law(verifier, target, lambda context: target(()) * 0, Tree.chain(1), draw, 2)
    assert law == target_law(target, 2)
    if verifier.select is None:
        p = target(())
        root = Draft(Tree.chain(0), np.array([[2]]), np.array([[p * 0]]), np.array([[p]]))
        assert verifier.stop(root).tolist() == [[1]]
        assert (verifier.next(root, np.array([0])) == p).all()


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_draw_from_one_token(draw: Draw) -> None:
    tokens = draw.sample(ONE[None], np.array([[Fraction(1, 3)] * 3]))
    assert draw.probability(ONE[None], tokens).tolist() == [1]
    assert set(tokens[0].tolist()) <= {0, -1}
    none = draw.sample(ONE[None] * 0, np.array([[Fraction(1, 3)] * 2]))
    assert none.tolist() == [[-1, -1]]
    assert draw.probability(ONE[None] * 0, none).tolist() == [1]
