"""Anytime-valid evidence of an audit: bets on one token after another, each with a mean of one under the target's law.

A bet multiplies its wealth by a(y) / p(y), whose mean given the past is one if the engine is exact, and at most one
after the charge for the tolerance if it is within that. What follows from this is in `wealth`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from draftproof.audit.alternatives import Alternative
from draftproof.audit.cells import Entries, Table
from draftproof.audit.wealth import STRENGTHS, SURE, Moments, Wealth

BLOCK = 256  # tables are updated after so many tokens


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


class Evidence(Wealth):
    """Bets against the target's law; `add` tokens in the order in which they were emitted."""

    def __init__(self, alternatives: Sequence[Alternative], tables: Sequence[Table], tolerance: float = 0.0) -> None:
        super().__init__(alternatives, tables)
        self.tolerance = tolerance
        self.counts = [np.zeros((2, table.keys, table.size)) for table in tables]  # observed, expected

    def add(self, observed: Observed) -> np.ndarray:
        """Bet on n more tokens and return what each added to the log evidence [n]."""
        starts = range(0, len(observed.void), BLOCK)
        return np.concatenate([self._block(observed.part(start, start + BLOCK)) for start in starts])

    def _block(self, observed: Observed) -> np.ndarray:
        columns = [named_logs(self.alternatives, observed) - self._charges(observed)]
        for entry, counts in zip(observed.entries, self.counts, strict=True):
            for strength in STRENGTHS:
                tilt = (counts[0] + strength) / (counts[1] + strength)
                columns.append(learned_logs(tilt, entry, observed.void, self.tolerance)[:, None])
            learn(counts, entry, observed.void)
        return self.advance(np.concatenate(columns, axis=1), len(observed.void))

    def surely(self, faulty: Moments, exact: Moments, charge: np.ndarray) -> np.ndarray:
        least: np.ndarray = self.count * (faulty.mean - charge) - SURE * np.sqrt(self.count * faulty.variance)
        return least

    def _charges(self, observed: Observed) -> np.ndarray:
        """[n, bets] what the named bets pay for the tolerance."""
        shares = [np.array(alternative.shares) for alternative in self.alternatives]
        spreads = (share * observed.spread[:, i, None] for i, share in enumerate(shares))
        return np.log1p(self.tolerance * np.concatenate(list(spreads), axis=1))


def named_logs(alternatives: Sequence[Alternative], observed: Observed) -> np.ndarray:
    """[n, bets] log factors of the named alternatives, each on its shares of the tokens."""
    columns = []
    for i, alternative in enumerate(alternatives):
        ratio = np.where(observed.void, 1.0, observed.ratio[:, i])[:, None]
        columns.append(np.log1p(np.array(alternative.shares) * (ratio - 1)))
    return np.concatenate(columns, axis=1)


def learned_logs(tilt: np.ndarray, entry: Entries, void: np.ndarray, tolerance: float = 0.0) -> np.ndarray:
    """[n] log factors of p tilted by `tilt` [keys, J] in each entry of a table, less the charge for the tolerance."""
    key, cell, mass = entry
    tilts = tilt[key]  # [n, J]
    total = (mass * tilts).sum(axis=1)
    betting = total > 0
    total = np.where(betting, total, 1.0)
    logs = np.where(void, 0.0, np.log(tilts[np.arange(len(cell)), cell] / total))
    if tolerance:
        logs -= np.log1p(tolerance * (tilts.max(axis=1) - tilts.min(axis=1)) / total)
    return np.where(betting, logs, 0.0)


def learn(counts: np.ndarray, entry: Entries, void: np.ndarray) -> None:
    """Add tokens to a table's counts [2, keys, J], observed and expected."""
    key, cell, mass = entry
    live = ~void & (mass.sum(axis=1) > 0)
    np.add.at(counts[0], (key[live], cell[live]), 1.0)
    np.add.at(counts[1], key[live], mass[live])
