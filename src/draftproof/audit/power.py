"""The power of an audit: the smallest fault of each kind that it would have shown nine times out of ten.

A fault with the law a, on a share s of the tokens, makes them follow p + s (a - p). What a bet then wins at a token, in
logarithms l(y), has the mean E_p[l] + s sum_y (a - p) l(y), and likewise its square. These sums are taken over the
whole vocabulary, at rows of the audit itself, so they do not depend on which tokens happened to come. The bets' shares,
caps, parts of the capital and charges for the tolerance are all in it. Learned bets are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from array_api_compat import array_namespace

from draftproof.audit.alternatives import Alternative, AuditRows, rows_at
from draftproof.audit.cells import numbers
from draftproof.audit.payoffs import Capping
from draftproof.audit.wealth import Moments, Wealth

ROWS = 200  # of the first ones all are looked at, then ever fewer: each costs several times what its bets do
CHUNK = 2**16  # entries of one law in a piece of work
ENOUGH = 50.0  # logarithm of a factor: more than any alarm
HALVINGS = 14  # of the interval of shares, from 1e-5 to 1 in logarithms


class Power(NamedTuple):
    """The smallest fault of one family that this many tokens reveal nine times out of ten."""

    family: str
    says: str
    share: float | None  # of the tokens on which the fault happens; None: it would not be detected even on all of them
    total_variation: float | None  # per token, at that share


class PowerSums:
    """What the bets win on average, exactly and under each fault, summed over some of the rows of an audit."""

    def __init__(self, alternatives: Sequence[Alternative], tolerance: float) -> None:
        self.alternatives, self.tolerance = alternatives, tolerance
        named, count = sum(len(alternative.shares) for alternative in alternatives), len(alternatives)
        self.rows = 0.0
        self.exact = np.zeros((2, named))  # under p: log factors, their squares
        self.change = np.zeros((2, count, named))  # by which each fault changes them
        self.charge = np.zeros(named)
        self.away = np.zeros(count)  # total variation of each fault
        self._stride, self._skip, self._taken = 1, 0, 0

    def take(self, rows: AuditRows) -> None:
        """Look at some of these rows; as an audit goes on, at fewer and fewer, which stand for more."""
        total = len(rows.y)
        chosen = np.arange(self._skip, total, self._stride)
        self._skip = (self._skip - total) % self._stride
        size = max(1, CHUNK // rows.p.shape[-1])
        for start in range(0, len(chosen), size):
            self._add(rows_at(rows, chosen[start : start + size]))
        self._taken += len(chosen)
        while self._taken > ROWS:
            self._taken, self._stride = self._taken // 2, 2 * self._stride

    def _add(self, rows: AuditRows) -> None:
        xp = array_namespace(rows.p)
        known = xp.any(rows.p > 0, axis=-1, keepdims=True)
        capping = Capping(rows, self.tolerance)
        away, logs, charge = [], [], []
        for alternative in self.alternatives:
            a = alternative.law(rows)
            away.append(xp.where(known, a - rows.p, rows.p * 0))
            ratio, spread = capping.paid(a, alternative)
            for share in alternative.shares:
                log = xp.log1p(xp.clip(share * (ratio - 1), max=math.exp(ENOUGH)))
                logs.append(xp.where(known, log, log * 0))
                charge.append(xp.sum(xp.log1p(share * self.tolerance * spread)))
        won, moved = (xp.reshape(xp.stack(laws), (len(laws), -1)) for laws in (logs, away))
        flat = xp.reshape(rows.p, (-1,))
        weight = self._stride
        self.rows += weight * len(rows.y)
        self.charge += weight * numbers(xp.stack(charge))
        self.away += weight * numbers(xp.sum(abs(moved), axis=-1)) / 2
        for i, power in enumerate((won, won * won)):
            self.exact[i] += weight * numbers(power @ flat)
            self.change[i] += weight * numbers(moved @ power.T)

    def moments(self, share: np.ndarray) -> Moments:
        """Of each bet [A, B] under each fault at its share [A]; at a share of 0 what they are if nothing is wrong."""
        mean, square = (self.exact[:, None] + share[:, None] * self.change) / max(self.rows, 1)
        return Moments(mean, np.maximum(square - mean**2, 0))


def powers(game: Wealth, sums: PowerSums, alpha: float) -> tuple[Power, ...]:
    """For each family of named alternatives the smallest fault that is detected nine times out of ten."""
    count = len(sums.alternatives)
    named = sums.exact.shape[1]
    weight = np.log([bet.weight for bet in game.bets[:named]])
    exact, charge = sums.moments(np.zeros(count)), sums.charge / max(sums.rows, 1)

    def shown(share: np.ndarray) -> np.ndarray:
        """Whether each fault [A] is detected at its share."""
        reached = game.surely(sums.moments(share), exact, charge) + weight
        return np.asarray(reached.max(axis=1) >= math.log(1 / alpha))

    low, high, ever = np.full(count, 1e-5), np.ones(count), shown(np.ones(count))
    for _ in range(HALVINGS):
        middle = np.sqrt(low * high)
        found = shown(middle)
        low, high = np.where(found, low, middle), np.where(found, middle, high)
    smallest: dict[str, Power] = {}
    for i, alternative in enumerate(sums.alternatives):
        if sums.away[i] == 0:  # the settings have nothing that this fault could spoil
            continue
        share, off = float(high[i]), abs(alternative.factor - 1)
        distance = share * float(sums.away[i]) / sums.rows
        power = Power(alternative.family, alternative.says, share, distance)
        if not ever[i]:
            power = Power(alternative.family, alternative.says, None, None)
        elif off > 0:
            power = Power(alternative.family, f"the temperature were off by {share * off:.2%}", 1.0, distance)
        known = smallest.get(alternative.family)
        if known is None or _size(power) < _size(known):
            smallest[alternative.family] = power
    return tuple(smallest.values())


def _size(power: Power) -> float:
    return math.inf if power.total_variation is None else power.total_variation
