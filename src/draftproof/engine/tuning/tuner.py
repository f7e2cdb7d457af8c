"""The contract of tuners, which choose the shape of the next step from the steps before it.

Any choice is exact: a step's shape and draft temperature depend on past steps only, never on the draft at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from draftproof.draft import Tree
from draftproof.engine.trace import Step


class StepReport(NamedTuple):
    """The report of a step for tuners."""

    asked: Tree  # the shape that was asked for
    sent: Tree  # the part of it that had draft tokens
    steps: Sequence[Step]  # of each text in the call
    seconds: Mapping[str, float]  # by phase
    fresh: bool = False  # the call included prefill, or rows of others: its time does not count
    laws: tuple[np.ndarray, np.ndarray] | None = None  # p and q [B, V] after the last committed tokens, where wanted


class Tuner(Protocol):
    """Chooses the shape of the next step and learns how the last one went."""

    @property
    def size(self) -> int:
        """Nodes of the largest tree it may choose: what a session must have room for."""
        ...

    @property
    def tunes(self) -> bool:
        """Whether the shape changes from step to step, so that the trace reports it."""
        ...

    @property
    def example(self) -> Tree:
        """A shape of the kind that may be chosen."""
        ...

    @property
    def tree(self) -> Tree:
        """The shape of the next step."""
        ...

    @property
    def factor(self) -> float:
        """Multiplies the temperature of the next step's draft tokens."""
        ...

    @property
    def least(self) -> float:
        """How likely a token of a chain must be to be reached, by its drafter's own laws; less likely ones are not
        drafted. This too is exact: whether a draft goes on depends on its tokens so far."""
        ...

    @property
    def wants_laws(self) -> bool:
        """Whether `learn` would look at the laws of the next step."""
        ...

    def expect(self, rows: int, joining: bool) -> None:
        """Before a step: how many texts it has, and whether one of them has its prompt still to be read."""
        ...

    def learn(self, report: StepReport) -> None:
        """Record a step."""
        ...


class Fixed:
    """The same shape in every step."""

    tunes = False
    factor, least = 1.0, 0.0
    wants_laws = False

    def __init__(self, tree: Tree) -> None:
        self.tree = self.example = tree
        self.size = tree.size

    def expect(self, rows: int, joining: bool) -> None:
        """Nothing depends on it."""

    def learn(self, report: StepReport) -> None:
        """Nothing to learn."""
