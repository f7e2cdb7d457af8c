"""Anytime-valid evidence (Ville 1939; Shafer 2021; Ramdas et al. 2210.01948): wealth won by betting against exactness.

Every bet multiplies its wealth by a ratio whose mean, given the past, is one if the engine is exact (at most one, if it
is within the tolerance). So each wealth is a martingale that starts at one, their weighted mean is one too, and by
Ville's inequality it ever reaches 1 / alpha with probability at most alpha: one may look after every token and stop
whenever one likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from draftproof.audit.alternatives import CAPITAL, Alternative
from draftproof.audit.cells import Entries, Table

STRENGTHS = (20.0, 400.0, 8000.0)  # how many expected tokens of a cell it takes to believe half of what they say
BLOCK = 256  # tables learn after so many tokens
POINTS = 400  # of the curve


class Bet(NamedTuple):
    """One line of the book: what is bet on, and its part of the starting capital."""

    family: str
    says: str
    share: float  # of the tokens on which the fault is thought to happen
    factor: float  # of a temperature
    weight: float


class Observed(NamedTuple):
    """n tokens as the bets see them."""

    ratio: np.ndarray  # [n, A] of each alternative
    spread: np.ndarray  # [n, A]
    entries: Sequence[Entries]  # of each table
    void: np.ndarray  # [n] tokens on which no bet is won or lost; the charge for noise is paid all the same

    def part(self, start: int, stop: int) -> Observed:
        """Some of the tokens."""
        entries = [Entries(*(array[start:stop] for array in entry)) for entry in self.entries]
        return Observed(self.ratio[start:stop], self.spread[start:stop], entries, self.void[start:stop])


class Evidence:
    """The book of bets; `add` tokens in the order in which they came."""

    def __init__(self, alternatives: Sequence[Alternative], tables: Sequence[Table], tolerance: float = 0.0) -> None:
        self.alternatives, self.tables, self.tolerance = alternatives, tables, tolerance
        self.bets = _book(alternatives, tables)
        self.families = tuple(dict.fromkeys(bet.family for bet in self.bets))
        self.seen = [np.zeros((2, table.keys, table.size)) for table in tables]  # observed, expected
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
        """Log of the weighted mean of all wealth: what is held now."""
        return float(_mean(self.wealth + self._weights))

    @property
    def lead(self) -> int:
        """The bet that won most."""
        return int(np.argmax(self.wealth))

    def add(self, observed: Observed) -> np.ndarray:
        """Bet on n more tokens; what each of them added to the log evidence [n]."""
        starts = range(0, len(observed.void), BLOCK)
        return np.concatenate([self._block(observed.part(start, start + BLOCK)) for start in starts])

    def _block(self, observed: Observed) -> np.ndarray:
        live = ~observed.void
        logs = np.concatenate([self._fixed(observed), self._learned(observed)], axis=1)
        before = self.evidence
        wealth = self.wealth + np.cumsum(logs, axis=0)
        held = _mean(wealth + self._weights)
        self.wealth = wealth[-1]
        self.peak = max(self.peak, float(held.max()))
        self.sums += np.where(np.isfinite(logs), [logs, logs**2], 0).sum(axis=1)
        away = np.where(np.isfinite(observed.ratio), observed.ratio - 1, 0)[live]
        self.moments += np.stack([abs(away).sum(axis=0) / 2, (away**2).sum(axis=0)])
        self._draw(wealth, held)
        self.count += len(live)
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(np.diff(held, prepend=before), nan=0.0, posinf=np.inf)

    def _fixed(self, observed: Observed) -> np.ndarray:
        """[n, bets] log ratios of the named alternatives."""
        made = []
        for i, alternative in enumerate(self.alternatives):
            share = np.array(alternative.shares)
            ratio = np.where(observed.void, 1.0, observed.ratio[:, i])[:, None]
            spread = observed.spread[:, i, None]
            made.append(np.log1p(share * (ratio - 1)) - np.log1p(share * self.tolerance * spread))
        return np.concatenate(made, axis=1)

    def _learned(self, observed: Observed) -> np.ndarray:
        """[n, bets] log ratios of the tables, which then learn from these tokens."""
        made = []
        for entry, seen in zip(observed.entries, self.seen, strict=True):
            key, cell, mass = entry
            for strength in STRENGTHS:
                tilt = ((seen[0] + strength) / (seen[1] + strength))[key]  # [n, J]
                total = (mass * tilt).sum(axis=1)
                says = total > 0
                total = np.where(says, total, 1.0)
                logs = np.where(observed.void, 0.0, np.log(tilt[np.arange(len(cell)), cell] / total))
                if self.tolerance:
                    logs -= np.log1p(self.tolerance * (tilt.max(axis=1) - tilt.min(axis=1)) / total)
                made.append(np.where(says, logs, 0.0))
            live = ~observed.void & (mass.sum(axis=1) > 0)
            np.add.at(seen[0], (key[live], cell[live]), 1.0)
            np.add.at(seen[1], key[live], mass[live])
        return np.stack(made, axis=1) if made else np.zeros((len(observed.void), 0))

    @property
    def path(self) -> tuple[tuple[int, float, list[float]], ...]:
        """The curve up to the last token."""
        last = (self.count, self.evidence, self._families(self.wealth))
        return tuple(self.curve if self.curve[-1][0] == self.count else [*self.curve, last])

    def _families(self, wealth: np.ndarray) -> list[float]:
        """Log evidence of each family alone."""
        weighted = wealth + self._weights
        return [float(_mean(weighted[own]) - _mean(self._weights[own])) for own in self._member]

    def _draw(self, wealth: np.ndarray, held: np.ndarray) -> None:
        """A point of the curve now and then; when there are many, every other one goes."""
        count = self.count + len(held)
        if count - self.curve[-1][0] >= self._stride or not np.isfinite(held[-1]):
            self.curve.append((count, float(held[-1]), self._families(wealth[-1])))
        if len(self.curve) > POINTS:
            self.curve = self.curve[::2]
            self._stride *= 2


def _book(alternatives: Sequence[Alternative], tables: Sequence[Table]) -> tuple[Bet, ...]:
    """Capital for each family; in it for each alternative by its stake, and equal for its shares or strengths."""
    lines = [Bet(a.family, a.says, s, a.factor, a.stake / len(a.shares)) for a in alternatives for s in a.shares]
    lines += [Bet(table.says, table.says, 1.0, 1.0, 1.0) for table in tables for _ in STRENGTHS]
    stakes = {family: sum(bet.weight for bet in lines if bet.family == family) for family in {b.family for b in lines}}
    whole = sum(CAPITAL.get(family, 1.0) for family in stakes)
    return tuple(b._replace(weight=CAPITAL.get(b.family, 1.0) / whole * b.weight / stakes[b.family]) for b in lines)


def _mean(logs: np.ndarray) -> np.ndarray:
    """log sum exp over the last axis; infinite wealth stays infinite."""
    top = logs.max(axis=-1, keepdims=True)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(over="ignore"):
        made: np.ndarray = np.log(np.exp(logs - safe).sum(axis=-1)) + safe[..., 0]
    return made
