"""The chain of one text under a grammar, by a drafter that follows it token by token.

It drafts what `propose` would, without the arrays of several rows and drafters: those cost as much as a head's law.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftproof.draft import Tree
from draftproof.engine.eager.columns import Columns
from draftproof.engine.eager.constraints import Constraints, checked, is_open
from draftproof.engine.eager.goals import CHEAP, chance
from draftproof.engine.eager.rows import Row
from draftproof.errors import first_line
from draftproof.grammar import State
from draftproof.models.base import PathDrafter


class Followed:
    """Draft tokens, and the laws they were drawn from: a token where it was sure, an array where it was drawn."""

    def __init__(self, state: State) -> None:
        self.tokens: list[int] = []
        self.laws: list[np.ndarray | int] = []
        self.states: list[State | None] = [checked(state)]
        self.failure: str | None = None

    def add(self, token: int, law: np.ndarray | int) -> None:
        here = self.states[-1]
        self.tokens.append(token)
        self.laws.append(law)
        self.states.append(None if here is None else checked(here.after(token)))

    def dense(self, columns: Columns) -> tuple[np.ndarray, np.ndarray | None]:
        """The laws [1, N, D], with a zero row after the last token, and the tokens of their columns."""
        places = [columns.place(law) if isinstance(law, int) else -1 for law in self.laws]
        q = np.zeros((1, len(places) + 1, columns.size), dtype=np.float32)
        for n, (law, place) in enumerate(zip(self.laws, places, strict=True)):
            if isinstance(law, int):
                q[0, n, place] = 1
            else:
                q[0, n, : len(law)] = law
        return columns.ascending(q)

    @property
    def constraints(self) -> Constraints:
        return Constraints({0: self.states})


def follow(row: Row, drafter: PathDrafter, longest: int, room: int, u: np.ndarray) -> Followed | None:
    """Draft up to `longest` tokens, or up to `room` as long as all are sure; None where it cannot.

    u    uniforms [room + 1] of the nodes of the chain

    What was drawn before a failure stays: see `propose`.
    """
    assert row.state is not None
    made, left, ids = Followed(row.state), longest, np.asarray(drafter.draft_tokens)
    temperature, guessed, reached = row.draft_sampling.temperature, False, 1.0
    assert not callable(temperature)
    while len(made.tokens) < room and is_open(here := made.states[-1]) and here is not None:
        is_sure = here.expected >= 0
        guessed = guessed or not is_sure
        if (guessed and left <= 0) or reached < row.least * (CHEAP if is_sure else 1):
            break
        if is_sure:
            made.add(here.expected, here.expected)
            left -= 1
            continue
        try:
            drawn = drafter.draw_after(made.tokens, temperature, float(u[len(made.tokens) + 1]), here.among(ids))
        except Exception as error:  # whatever a drafter raises, the text goes on
            made.failure = first_line(error)
            break
        if drawn is None:
            return None
        place, law = drawn
        if place < 0:  # none of the tokens that may follow can be drafted
            break
        made.add(int(ids[place]), law)
        reached *= chance(float(law[place]))
        left -= 1
    return made


def fits(rows: Sequence[Row], tree: Tree) -> bool:
    """Whether this is a chain of one text under a grammar, whose draft is sampled by temperature alone."""
    return len(rows) == 1 and rows[0].state is not None and tree.is_chain and rows[0].draft_sampling.is_whole
