"""The wealth of all bets, and its curve: the state of an audit's game, whatever is bet on.

Every bet multiplies its wealth by a factor whose mean, given the past, is at most one if nothing is wrong. So each
wealth is a martingale that starts at one (or falls), their weighted mean is one too, and by Ville's inequality (Ville
1939; Shafer 2021; Ramdas et al. 2210.01948) it ever reaches 1 / alpha with probability at most alpha: one may look at
any time and stop at any time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from draftproof.audit.alternatives import CAPITAL, Alternative
from draftproof.audit.cells import Table

STRENGTHS = (20.0, 400.0, 8000.0)  # prior counts: a cell's observed ratio weighs half at so many expected tokens
POINTS = 400  # of the curve
SURE = 1.2815515655446004  # normal quantile of 90%
STRIDE = 256  # tokens between two points of the curve, at first


class Bet(NamedTuple):
    """One bet: its alternative, and its part of the starting capital."""

    family: str
    says: str
    share: float  # of the tokens on which the fault is assumed to happen
    factor: float  # of a temperature
    weight: float


class Moments(NamedTuple):
    """Mean and variance per token of what each named bet wins, in logarithms."""

    mean: np.ndarray
    variance: np.ndarray


class Wealth(ABC):
    """All bets and their wealth; `advance` by what each of them won."""

    def __init__(self, alternatives: Sequence[Alternative], tables: Sequence[Table]) -> None:
        self.alternatives, self.tables = alternatives, tables
        self.bets = _book(alternatives, tables)
        self.families = tuple(dict.fromkeys(bet.family for bet in self.bets))
        self.wealth = np.zeros(len(self.bets))  # logarithms
        self.peak = 0.0  # largest log evidence at any time
        self.count = 0  # tokens
        self.rounds = 0  # factors by which each wealth was multiplied
        self.sums = np.zeros((2, len(self.bets)))  # of each bet's log factors, and of their squares
        self.curve: list[tuple[int, float, list[float]]] = [(0, 0.0, [0.0] * len(self.families))]
        self._stride = STRIDE
        self._weights = np.log([bet.weight for bet in self.bets])
        self._member = np.array([[bet.family == family for bet in self.bets] for family in self.families])

    @property
    def evidence(self) -> float:
        """Log of the weighted mean of all wealth after the last token."""
        return float(_mean(self.wealth + self._weights))

    @property
    def lead(self) -> int:
        """Index of the bet with the largest wealth."""
        return int(np.argmax(self.wealth))

    def advance(self, logs: np.ndarray, tokens: int) -> np.ndarray:
        """Multiply the wealth by factors, given as logarithms [n, bets], won on so many tokens.

        Returns what each round added to the log evidence [n].
        """
        before = self.evidence
        wealth = self.wealth + np.cumsum(logs, axis=0)
        evidence = _mean(wealth + self._weights)
        self.wealth = wealth[-1]
        self.peak = max(self.peak, float(evidence.max()))
        self.sums += np.where(np.isfinite(logs), [logs, logs**2], 0).sum(axis=1)
        self.count += tokens
        self.rounds += len(logs)
        self._draw(wealth[-1], float(evidence[-1]))
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(np.diff(evidence, prepend=before), nan=0.0, posinf=np.inf)

    @abstractmethod
    def surely(self, faulty: Moments, exact: Moments, charge: np.ndarray) -> np.ndarray:
        """The log wealth that each named bet reaches nine times out of ten if tokens come with a fault.

        faulty, exact   what the bets win at a token with the fault, and without it
        charge          what they pay for the tolerance at a token
        """

    @property
    def path(self) -> tuple[tuple[int, float, list[float]], ...]:
        """The curve up to the last token."""
        last = (self.count, self.evidence, self._families(self.wealth))
        return tuple(self.curve if self.curve[-1][0] == self.count else [*self.curve, last])

    def _families(self, wealth: np.ndarray) -> list[float]:
        """Log evidence of each family alone."""
        weighted = wealth + self._weights
        return [float(_mean(weighted[own]) - _mean(self._weights[own])) for own in self._member]

    def _draw(self, wealth: np.ndarray, evidence: float) -> None:
        """Add a point to the curve now and then; when there are too many, drop every other one."""
        if self.count - self.curve[-1][0] >= self._stride or not np.isfinite(evidence):
            self.curve.append((self.count, evidence, self._families(wealth)))
        if len(self.curve) > POINTS:
            self.curve = self.curve[::2]
            self._stride *= 2


def _book(alternatives: Sequence[Alternative], tables: Sequence[Table]) -> tuple[Bet, ...]:
    """Divide the capital: by family, in it by the alternatives' stakes, equally among their shares or strengths."""
    lines = [Bet(a.family, a.says, s, a.factor, a.stake / len(a.shares)) for a in alternatives for s in a.shares]
    lines += [Bet(table.says, table.says, 1.0, 1.0, 1.0) for table in tables for _ in STRENGTHS]
    stakes = {family: sum(bet.weight for bet in lines if bet.family == family) for family in {b.family for b in lines}}
    whole = sum(CAPITAL.get(family, 1.0) for family in stakes)
    return tuple(b._replace(weight=CAPITAL.get(b.family, 1.0) / whole * b.weight / stakes[b.family]) for b in lines)


def _mean(logs: np.ndarray) -> np.ndarray:
    """Log-sum-exp over the last axis; infinite wealth stays infinite."""
    top = logs.max(axis=-1, keepdims=True)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(over="ignore"):
        mean: np.ndarray = np.log(np.exp(logs - safe).sum(axis=-1)) + safe[..., 0]
    return mean
