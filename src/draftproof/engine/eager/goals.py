"""How far each row of a step is drafted, and how much room that takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from draftproof.draft import Tree
from draftproof.engine.eager.rows import Row

ROOM = 33  # nodes of a chain that goes on where a grammar makes sure of the next token
CHEAP = 0.5  # share of the chance of being reached that is enough for a token that is sure: no drafter is asked for it


def chance(q: Any) -> Any:
    """How likely the target is to accept a token that a trained drafter drew with probability q.

    Fitted to 24,000 draft tokens of the shipped head; native/step.c has it too. It is rough, and never changes the law
    of a text: whether a draft goes on depends on its tokens so far, and where it ends q is zero.
    """
    return 0.35 + 0.6 * q


def roomy(rows: Sequence[Row], tree: Tree) -> Tree:
    """The tree, with room for what the grammar of a row makes sure of if it is a chain."""
    constrained = tree.is_chain and any(row.state is not None and row.room >= tree.size for row in rows)
    return Tree.chain(max(tree.size, ROOM) - 1) if constrained else tree


class Goals:
    """How far each row is drafted. In a chain, tokens that a grammar makes sure of may go further than guesses.

    They do so before the first guess alone: after one they are of no use where it is rejected. A guess stands no deeper
    than without a grammar, so that a drafter is called as often, also for the other rows.
    """

    def __init__(self, rows: Sequence[Row], tree: Tree) -> None:
        self._is_chain, deepest = tree.is_chain, tree.depth[-1]
        self._left = np.array([[min(row.depth, deepest)] for row in rows])
        self._room = np.array([[row.depth if row.state is None else row.room] for row in rows])
        self._guessed = np.zeros((len(rows), 1), dtype=bool)
        self._least = np.array([[row.least] for row in rows])
        self._reached = np.ones((len(rows), 1))  # how likely the next token of each row is to be reached

    def wanted(self, depth: int, possible: np.ndarray, sure: np.ndarray) -> np.ndarray:
        """[B, nodes of a level]: where to draw, of the nodes where that is possible."""
        if not self._is_chain:
            return possible & (depth < self._left)
        self._guessed = self._guessed | ~sure
        possible = possible & (self._reached >= self._least * np.where(sure, CHEAP, 1))
        wanted = possible & (depth < self._room) & ((self._left > 0) | ~self._guessed)
        self._left = self._left - wanted
        return np.asarray(wanted)

    @property
    def watches(self) -> bool:
        """Whether it matters how likely draft tokens are."""
        return self._is_chain and bool(self._least.any())

    def drew(self, rows: np.ndarray, q: np.ndarray) -> None:
        """Record that a token of a chain was drawn in these rows, with probabilities q."""
        self._reached[rows, 0] *= chance(q)
