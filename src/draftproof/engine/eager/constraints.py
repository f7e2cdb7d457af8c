"""Where in its grammar each node of a draft is: what may follow there, and what is sure to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftproof.draft import Tree
from draftproof.engine.eager.rows import Masks, Row
from draftproof.errors import DraftproofError
from draftproof.grammar import State


class Constraints:
    """The grammar's state after each node of a draft, for the rows that have a grammar.

    A node has none where nothing was drawn, and below a token that its grammar forbids: no text goes there.
    """

    def __init__(self, states: dict[int, list[State | None]]) -> None:
        self.states = states  # row -> of each node

    @staticmethod
    def of(rows: Sequence[Row]) -> Constraints:
        """Those of node 0."""
        return Constraints({b: [checked(row.state)] for b, row in enumerate(rows) if row.state is not None})

    def __bool__(self) -> bool:
        return bool(self.states)

    def advance(self, tree: Tree, tokens: np.ndarray, nodes: range) -> None:
        """Follow the tokens [B, N] that were drawn for these nodes, the next ones of the tree."""
        for b, states in self.states.items():
            for node in nodes:
                above, token = states[tree.parent[node]], int(tokens[b, node])
                below = None if above is None or above.is_over or token < 0 else above.after(token)
                states.append(checked(below))

    def goes_on(self, rows: int, nodes: range) -> np.ndarray:
        """[B, len(nodes)]: whether a text may go on after each node."""
        open_ = np.ones((rows, len(nodes)), dtype=bool)
        for b, states in self.states.items():
            open_[b] = [is_open(states[node]) for node in nodes]
        return open_

    def expected(self, rows: int, nodes: range) -> np.ndarray:
        """[B, len(nodes)]: the token that is sure to follow each node; -1 where it is open."""
        tokens = np.full((rows, len(nodes)), -1, dtype=np.int64)
        for b, states in self.states.items():
            tokens[b] = [state.expected if state is not None else -1 for state in (states[node] for node in nodes)]
        return tokens

    def allows(self, nodes: range, guesses: np.ndarray) -> np.ndarray:
        """The guesses [B, len(nodes)] after these nodes that may follow them; -1 for the others."""
        kept = guesses.copy()
        for b, masks in self.masks(nodes).items():
            for i, mask in enumerate(masks):
                if mask is not None and guesses[b, i] >= 0 and not mask[guesses[b, i]]:
                    kept[b, i] = -1
        return kept

    @property
    def errors(self) -> dict[int, Exception]:
        """The rows that a grammar cannot follow to one of their nodes, each with the reason."""
        return {b: state.error for b, states in self.states.items() for state in states if isinstance(state, Broken)}

    def masks(self, nodes: Sequence[int], ids: np.ndarray | None = None) -> Masks:
        """What may follow each of these nodes, [V], or of the tokens `ids` [D]; None where everything may."""
        return {b: [_allowed(states[node], ids) for node in nodes] for b, states in self.states.items()}


class Broken:
    """A place that its grammar is too large to follow to: the row fails, and no other."""

    expected, is_over = -1, False

    def __init__(self, error: DraftproofError) -> None:
        self.error = error

    @property
    def allowed(self) -> np.ndarray:
        raise self.error

    def among(self, ids: np.ndarray) -> np.ndarray:
        raise self.error

    def after(self, token: int) -> None:
        return None


def checked(state: State | None) -> State | None:
    """The state, with its mask computed."""
    try:
        return None if state is None or state.allowed is None else state
    except DraftproofError as error:
        return Broken(error)


def is_open(state: State | None) -> bool:
    return not (state is None or state.is_over or isinstance(state, Broken))


def _allowed(state: State | None, ids: np.ndarray | None) -> np.ndarray | None:
    if state is None or not is_open(state):
        return None
    return state.allowed if ids is None else state.among(ids)
