"""Under a grammar every verifier gives the restricted law, in fractions, also where draft tokens are sure."""

from __future__ import annotations

from functools import cache

import pytest

from draftproof.draft import Tree
from draftproof.draws import Draw
from draftproof.rule import Verifier
from draftproof.theory.enumerate import output_law, target_law
from draftproof.verify import VERIFIERS
from tests.support.automata import automaton, guessing, state, under
from tests.support.tables import cases, table

CASES = [
    pytest.param(v, *case, id=f"{v.name}-{case[2].name}-{case[0].parent}")
    for v in VERIFIERS.values()
    if v.select is None or v.cells is not None
    for case in cases(v)
]


@pytest.mark.parametrize(("verifier", "tree", "size", "draw"), CASES)
def test_the_joint_law_is_the_restricted_targets(verifier: Verifier, tree: Tree, size: int, draw: Draw) -> None:
    length = max(tree.depth[-1] + 1, 2)
    for seed in range(3):
        grammar = automaton(seed, size)
        target = cache(under(table(2 * seed, size), grammar, size))
        drafter = cache(guessing(table(2 * seed + 1, size, abstain=0.2), grammar, size))
        law = output_law(verifier, target, drafter, tree, draw, length)
        assert law == target_law(target, length)
        assert all(state(grammar, size, text) is not None for text in law)
