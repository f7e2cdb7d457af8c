"""What a bet on an alternative law pays: a(y) / p(y), whose mean under p is one, and what a tolerance makes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from array_api_compat import array_namespace

from draftproof.audit.alternatives import TINY, Alternative, AuditRows
from draftproof.law import Array, at, divide


class Payoff(NamedTuple):
    """What a bet on one alternative pays at each token."""

    ratio: Array  # [R] a(y) / p(y): mean one under p; infinite where p(y) = 0 and no noise is allowed for
    spread: Array  # [R] largest less smallest ratio: what a unit of total variation could add to the mean


def payoffs(alternatives: Sequence[Alternative], rows: AuditRows, tolerance: float) -> list[Payoff]:
    """The payoffs of every alternative; with a tolerance the ratios are capped at an unchanged mean of one.

    What a cap takes from a ratio is given back evenly. If the engine's law is within `tolerance` of p in total
    variation, the ratio's mean under it is at most 1 + tolerance * spread, and the bet is charged with that.
    """
    xp = array_namespace(rows.p)
    here = at(rows.p, rows.y)
    if tolerance == 0:
        return [_unbounded(alternative.law(rows), rows.y, here) for alternative in alternatives]
    capping = Capping(rows, tolerance)
    pays = []
    for alternative in alternatives:
        a = alternative.law(rows)
        ratio, rest, spread = capping.of(a, alternative)
        neither = (here == 0) & (at(a, rows.y) == 0)  # no bet
        pays.append(Payoff(xp.where(neither, 1.0, at(ratio, rows.y) + rest), spread))
    return pays


def _unbounded(a: Array, y: Array, here: Array) -> Payoff:
    """The ratio a(y) / p(y) without a cap."""
    xp = array_namespace(a)
    share = at(a, y)
    outside = xp.where(share > 0, share * 0 + math.inf, share * 0 + 1)
    return Payoff(xp.where(here > 0, divide(share, here), outside), here * 0)


class Capping:
    """Ratios of alternatives over the whole vocabulary, capped where a tolerance is allowed for."""

    def __init__(self, rows: AuditRows, tolerance: float) -> None:
        xp = array_namespace(rows.p)
        self.p, self.tolerance = rows.p, tolerance
        self._divisor = xp.where(rows.p > 0, rows.p, TINY)  # where p = 0: beyond every cap, or zero if a is zero too
        self._blocked = xp.where(rows.p > 0, rows.p * 0, 1 / TINY)
        self._unknown = ~xp.any(rows.p > 0, axis=-1)

    def of(self, a: Array, alternative: Alternative) -> tuple[Array, Array, Array]:
        """The capped ratio [R, V], what is given back on top of it [R], and the spread [R]."""
        xp = array_namespace(a)
        ratio = xp.clip(a / self._divisor, max=alternative.cap(self.tolerance))
        rest = 1 - xp.sum(self.p * ratio, axis=-1)  # [R]
        low = xp.where(self._unknown, 0.0, xp.min(ratio + self._blocked, axis=-1))
        return ratio, rest, xp.max(ratio, axis=-1) - low

    def paid(self, a: Array, alternative: Alternative) -> tuple[Array, Array]:
        """What the bet pays at each token of the vocabulary [R, V], much instead of infinitely much; the spread [R]."""
        xp = array_namespace(a)
        neither = (self.p == 0) & (a == 0)
        if self.tolerance == 0:
            return xp.where(neither, 1.0, a / self._divisor), a[:, 0] * 0
        ratio, rest, spread = self.of(a, alternative)
        return xp.where(neither, 1.0, ratio + rest[:, None]), spread
