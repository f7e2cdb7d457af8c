"""Anytime-valid evidence (Ville 1939; Shafer 2021; Ramdas et al. 2210.01948): the wealth of bets against exactness.

Every bet multiplies its wealth by a ratio whose mean, given the past, is one if the engine is exact (at most one, if it
is within the tolerance). So each wealth is a martingale that starts at one, their weighted mean is one too, and by
Ville's inequality it ever reaches 1 / alpha with probability at most alpha: the audit may look after every
token and stop at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from draftproof.audit.alternatives import CAPITAL, Alternative
from draftproof.audit.cells import Entries, Table

STRENGTHS = (20.0, 400.0, 8000.0)  # prior counts: a cell's observed ratio weighs half at so many expected tokens
BLOCK = 256  # tables are updated after so many tokens
POINTS = 400  # of the curve


class Bet(NamedTuple):
    """One bet: its alternative, and its part of the starting capital."""

    family: str
    says: str
    share: float  # of the tokens on which the fault is assumed to happen
    factor: float  # of a temperature
    weight: float


class Observed(NamedTuple):
    """Payoffs and table entries of n tokens: all that the bets depend on."""

    ratio: np.ndarray  # [n, A] of each alternative
    spread: np.ndarray  # [n, A]
    entries: Sequence[Entries]  # of each table
    void: np.ndarray  # [n] tokens on which nothing is bet; the charge for the tolerance is still paid

    def part(self, start: int, stop: int) -> Observed:
        """The tokens from `start` to `stop`."""
        entries = [Entries(*(array[start:stop] for array in entry)) for entry in self.entries]
        return Observed(self.ratio[start:stop], self.spread[start:stop], entries, self.void[start:stop])


class Evidence:
    """All bets and their wealth; `add` tokens in the order in which they were emitted."""

    def __init__(self, alternatives: Sequence[Alternative], tables: Sequence[Table], tolerance: float = 0.0) -> None:
        self.alternatives, self.tables, self.tolerance = alternatives, tables, tolerance
        self.bets = _book(alternatives, tables)
        self.families = tuple(dict.fromkeys(bet.family for bet in self.bets))
        self.counts = [np.zeros((2, table.keys, table.size)) for table in tables]  # observed, expected
        self.wealth = np.zeros(len(self.bets))  # logarithms
        self.peak = 0.0  # largest log evidence at any time
        self.count = 0
        self.sums = np.zeros((2, len(self.bets)))  # of each bet's log ratios, and of their squares
        self.moments = np.zeros((2, len(alternatives)))  # of |ratio - 1| / 2 and (ratio - 1)^2, for the power
        self.curve: list[tuple[int, float, list[float]]] = [(0, 0.0, [0.0] * len(self.families))]
        self._stride = BLOCK
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

    def add(self, observed: Observed) -> np.ndarray:
        """Bet on n more tokens and return what each added to the log evidence [n]."""
        starts = range(0, len(observed.void), BLOCK)
        return np.concatenate([self._block(observed.part(start, start + BLOCK)) for start in starts])

    def _block(self, observed: Observed) -> np.ndarray:
        live = ~observed.void
        logs = np.concatenate([self._fixed(observed), self._learned(observed)], axis=1)
        before = self.evidence
        wealth = self.wealth + np.cumsum(logs, axis=0)
        evidence = _mean(wealth + self._weights)
        self.wealth = wealth[-1]
        self.peak = max(self.peak, float(evidence.max()))
        self.sums += np.where(np.isfinite(logs), [logs, logs**2], 0).sum(axis=1)
        away = np.where(np.isfinite(observed.ratio), observed.ratio - 1, 0)[live]
        self.moments += np.stack([abs(away).sum(axis=0) / 2, (away**2).sum(axis=0)])
        self._draw(wealth, evidence)
        self.count += len(live)
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(np.diff(evidence, prepend=before), nan=0.0, posinf=np.inf)

    def _fixed(self, observed: Observed) -> np.ndarray:
        """[n, bets] log ratios of the named alternatives."""
        columns = []
        for i, alternative in enumerate(self.alternatives):
            share = np.array(alternative.shares)
            ratio = np.where(observed.void, 1.0, observed.ratio[:, i])[:, None]
            spread = observed.spread[:, i, None]
            columns.append(np.log1p(share * (ratio - 1)) - np.log1p(share * self.tolerance * spread))
        return np.concatenate(columns, axis=1)

    def _learned(self, observed: Observed) -> np.ndarray:
        """[n, bets] log ratios of the tables, which then learn from these tokens."""
        columns = []
        for entry, counts in zip(observed.entries, self.counts, strict=True):
            key, cell, mass = entry
            for strength in STRENGTHS:
                tilt = ((counts[0] + strength) / (counts[1] + strength))[key]  # [n, J]
                total = (mass * tilt).sum(axis=1)
                betting = total > 0
                total = np.where(betting, total, 1.0)
                logs = np.where(observed.void, 0.0, np.log(tilt[np.arange(len(cell)), cell] / total))
                if self.tolerance:
                    logs -= np.log1p(self.tolerance * (tilt.max(axis=1) - tilt.min(axis=1)) / total)
                columns.append(np.where(betting, logs, 0.0))
            live = ~observed.void & (mass.sum(axis=1) > 0)
            np.add.at(counts[0], (key[live], cell[live]), 1.0)
            np.add.at(counts[1], key[live], mass[live])
        return np.stack(columns, axis=1) if columns else np.zeros((len(observed.void), 0))

    @property
    def path(self) -> tuple[tuple[int, float, list[float]], ...]:
        """The curve up to the last token."""
        last = (self.count, self.evidence, self._families(self.wealth))
        return tuple(self.curve if self.curve[-1][0] == self.count else [*self.curve, last])

    def _families(self, wealth: np.ndarray) -> list[float]:
        """Log evidence of each family alone."""
        weighted = wealth + self._weights
        return [float(_mean(weighted[own]) - _mean(self._weights[own])) for own in self._member]

    def _draw(self, wealth: np.ndarray, evidence: np.ndarray) -> None:
        """Add a point to the curve now and then; when there are too many, drop every other one."""
        count = self.count + len(evidence)
        if count - self.curve[-1][0] >= self._stride or not np.isfinite(evidence[-1]):
            self.curve.append((count, float(evidence[-1]), self._families(wealth[-1])))
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
