"""Estimates from past steps: how long a call takes, how far guesses get, and the best draft temperature.

They never change the law of a text; they only decide what is drafted in later steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import median_low as median  # of two times the smaller: the larger may be an outlier
from typing import Any, Protocol

import numpy as np

from draftproof.law import overlap
from draftproof.theory.plan import each_tempered

LONGEST = 16  # guesses in a row
RECENT = 7  # times kept for each size of call
OUTDATED = 0.7  # share of the usual time
SIMILAR_SIZES = 9  # up to so many times the smallest size, times are nearly linear
PRIOR_COUNT = 6  # weight of that line, in measurements
START_ROWS = 3  # rows that take as long to draft as to start drafting
BATCH = 8  # rows from which on even a plain call may be bound by arithmetic, so that no line is supposed
FADE = 0.96  # weight of older steps after one more: about the last 25 count
FACTORS = (0.7, 0.85, 1.0, 1.15)  # of the draft's temperature


class StepCosts(Protocol):
    """The times of steps, measured or assumed."""

    def add(self, tokens: int, levels: int, seconds: Mapping[str, float], rows: int = 1) -> None:
        """Record a call with `tokens` tokens after `levels` levels of drafting in so many rows."""
        ...

    @property
    def known(self) -> bool: ...

    def has(self, tokens: int) -> bool:
        """Whether calls with about so many tokens were measured, and not only extrapolated."""
        ...

    def draft(self, levels: int, rows: int = 1) -> float:
        """The time of drafting `levels` levels in so many rows."""
        ...

    def call(self, tokens: int) -> float:
        """The time of all but drafting, for a call with `tokens` tokens in all rows together."""
        ...


class Clock:
    """Measured times: medians of the last few, robust against outliers, interpolated linearly.

    A call takes as long for 16 texts of one token as for 4 texts of 4, so all of them make one line. Drafting goes
    level by level: its times are kept by the number of texts, and scaled for other numbers.
    """

    def __init__(self, enough: int = 3) -> None:
        """`enough`: number of measurements of one size that are trusted."""
        self._enough = enough
        self._calls: dict[int, deque[float]] = {}
        self._levels: dict[int, dict[int, deque[float]]] = {}  # by rows, then levels
        self._sizes: list[int] = []
        self._times: list[float] = []
        self._lines: dict[int, tuple[float, float]] = {}  # by rows: seconds of starting to draft, and per level

    def add(self, tokens: int, levels: int, seconds: Mapping[str, float], rows: int = 1) -> None:
        rest = sum(spent for phase, spent in seconds.items() if phase != "draft")
        _append(self._calls.setdefault(tokens, deque(maxlen=RECENT)), rest)
        if levels:
            mine = self._levels.setdefault(rows, {})
            _append(mine.setdefault(levels, deque(maxlen=RECENT)), seconds["draft"])
            self._lines[rows] = _line({count: median(times) for count, times in mine.items()})
        self._sizes = sorted(self._calls)
        times = self._medians() if self._sizes[0] < BATCH else [median(self._calls[n]) for n in self._sizes]
        # fewer tokens never take more time: where they seem to, something else ran then
        self._times = list(accumulate(reversed(times), min))[::-1]

    def _medians(self) -> list[float]:
        """The times of few tokens, where neighbours are alike: medians, with what is supposed before they are known."""
        first = median(self._calls[self._sizes[0]])
        supposed = {n: [_supposed(first, n / self._sizes[0])] if n < BATCH else [] for n in self._sizes[1:]}
        middle = [first] + [median([*self._calls[n], *supposed[n]]) for n in self._sizes[1:]]
        return _even(self._sizes, middle, [len(self._calls[n]) for n in self._sizes])

    @property
    def known(self) -> bool:
        return any(len(times) >= self._enough for times in self._calls.values())

    def has(self, tokens: int) -> bool:
        return any(2 * tokens <= 3 * size and 2 * size <= 3 * tokens for size in self._calls)

    def draft(self, levels: int, rows: int = 1) -> float:
        if not levels:
            return 0.0
        if not self._lines:
            return 0.05 * self.call(rows) * levels
        nearest = min(self._lines, key=lambda measured: max(measured / rows, rows / measured))
        first, slope = self._lines[nearest]
        return (first + slope * levels) * (START_ROWS + rows) / (START_ROWS + nearest)

    def call(self, tokens: int) -> float:
        sizes, times = self._sizes, self._times
        place = bisect_left(sizes, tokens)
        if place < len(sizes) and sizes[place] == tokens:
            return times[place]
        if place == 0 or len(sizes) == 1:
            return (
                times[0] * tokens / sizes[0] if BATCH <= sizes[0] < tokens else _supposed(times[0], tokens / sizes[0])
            )
        beyond = place == len(sizes)
        low, high = (0, place - 1) if beyond else (place - 1, place)
        slope = (times[high] - times[low]) / (sizes[high] - sizes[low])
        least = 0.02 * times[0] / sizes[0] if beyond else 0.0  # extrapolated tokens are never free
        return times[place - 1] + max(slope, least) * (tokens - sizes[place - 1])


def _append(times: deque[float], seconds: float) -> None:
    """One more time; if it is much shorter those before it are out of date: what else runs only makes them longer."""
    if times and seconds < OUTDATED * median(times):
        times.clear()
    times.append(seconds)


def _line(medians: Mapping[int, float]) -> tuple[float, float]:
    """Start and slope of the time of drafting by levels: the first level may take longer than the others."""
    few, many = min(medians), max(medians)
    per_level = min(time / count for count, time in medians.items())
    slope = (medians[many] - medians[few]) / (many - few) if many > few else per_level
    slope = min(max(slope, per_level / 2), per_level)  # bounded, because one through two measurements is unreliable
    return max(median(time - slope * count for count, time in medians.items()), 0.0), slope


def _even(sizes: Sequence[int], times: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Shrink the times of calls of similar size towards a line, the less the more often they were measured.

    Sizes are measured at different times, and other load on the machine can make neighbours look far apart.
    """
    near = [i for i, size in enumerate(sizes) if size <= SIMILAR_SIZES * sizes[0]]
    if len(near) < 3:
        return list(times)
    total = sum(counts[i] for i in near)
    x, y = (sum(counts[i] * values[i] for i in near) / total for values in (sizes, times))
    slope = sum(counts[i] * (sizes[i] - x) * times[i] for i in near) / sum(
        counts[i] * (sizes[i] - x) ** 2 for i in near
    )
    smoothed = list(times)
    for i in near:
        line = y + max(slope, 0.0) * (sizes[i] - x)
        smoothed[i] = (counts[i] * times[i] + PRIOR_COUNT * line) / (counts[i] + PRIOR_COUNT)
    return smoothed


def _supposed(plain: float, times: float) -> float:
    """The assumed time of a call with `times` as many tokens, before it was measured often."""
    return plain * (0.95 + 0.05 * times)


class Nominal:
    """Assumed costs in units of a plain step; unlike measured ones they give repeatable decisions."""

    known = True

    def __init__(self, slope: float, level: float) -> None:
        """`slope`: cost of one more token in a call; `level`: cost of a level of drafting."""
        self.slope, self.level = slope, level

    def has(self, tokens: int) -> bool:
        return True

    def draft(self, levels: int, rows: int = 1) -> float:
        return self.level * levels

    def add(self, tokens: int, levels: int, seconds: Mapping[str, float], rows: int = 1) -> None:
        """Nothing to learn."""

    def call(self, tokens: int) -> float:
        return 1 + self.slope * (tokens - 1)


class Survival:
    """Estimates P(accepted >= i), with older steps counting less.

    It is a product of ratios P(>= i) / P(>= i - 1). A ratio with little data is assumed to equal that of the position
    before it, and the first one to be `start`.
    """

    START, DOUBT = 0.4, 0.5

    def __init__(self, start: float = START, doubt: float = DOUBT, longest: int = 0, fade: float = FADE) -> None:
        """`doubt`: weight of the prior in steps; it falls to DOUBT as steps are recorded."""
        self._start, self._doubt, self._fade = start, doubt, fade
        self._reached = np.zeros(LONGEST)  # sums of P(accepted >= i) over steps that drafted that deep
        self._before = np.zeros(LONGEST)  # sums of P(accepted >= i - 1) over the same steps
        self._sent = np.zeros(LONGEST)  # how often a call went that deep
        self._asked = np.zeros(LONGEST)  # how often it could have
        self._guessed = self._steps = 1.0
        self.longest = longest  # draft that was asked for, among steps with a guess
        self.seen = 0  # steps with a guess

    def add(self, asked: int, sent: int, rows: Sequence[Sequence[float]]) -> None:
        """Record a step that asked for `asked` levels and sent `sent`, with P(accepted >= 1, 2, ...) of each row."""
        self._steps, self._guessed = self._steps * self._fade + 1, self._guessed * self._fade + (sent > 0)
        if not sent:
            return
        self.seen += 1
        self._doubt = max(0.85 * self._doubt, self.DOUBT)
        self.longest = max(self.longest, asked)
        self._scale(self._fade)
        mean = np.zeros(asked + 1)
        for row in rows:
            mean[1 : len(row) + 1] += row[:asked]
        mean /= len(rows)
        mean[0] = 1.0
        self._reached[:asked] += mean[1:]
        self._before[:asked] += mean[:-1]
        self._asked[:asked] += 1
        self._sent[: min(sent, asked)] += 1

    def doubt(self) -> None:
        """Halve the weight of all records, because they are old."""
        self._scale(0.5)

    def _scale(self, factor: float) -> None:
        for sums in (self._reached, self._before, self._sent, self._asked):
            sums *= factor

    @property
    def guessed(self) -> float:
        """Share of steps in which there was a guess at all."""
        return self._guessed / self._steps

    @property
    def reached(self) -> list[float]:
        """P(accepted >= 1, 2, ...) where there is a guess."""
        ratio, chance, chances = self._start, 1.0, []
        for hit, base in zip(self._reached.tolist(), self._before.tolist(), strict=True):
            ratio = min((hit + self._doubt * ratio) / (base + self._doubt), 1.0)
            chance *= ratio
            chances.append(chance)
        return chances

    @property
    def deep(self) -> list[float]:
        """How often a call with guesses goes 1, 2, ... deep if it may."""
        return list(((self._sent + self.DOUBT) / (self._asked + self.DOUBT)).tolist())


class Temper:
    """Chooses the factor on the draft's temperature with the largest overlap, from p and q of past steps.

    The overlap sum min(p, q) is the acceptance of one guess. It is computed for every factor from the one q that was
    used, so no factor has to be tried.
    """

    EVERY = 16  # steps; of the first few all are used

    def __init__(self) -> None:
        self.factor = 1.0
        self._overlap = np.zeros(len(FACTORS))
        self._weight = 0.0
        self._steps = 0

    @property
    def wants_laws(self) -> bool:
        """Whether the next step's laws will be used."""
        return self._steps < 4 or self._steps % self.EVERY == 0

    def learn(self, p: Any, q: Any) -> None:
        """Record laws [B, V] after the last committed token; rows with q = 0 are skipped."""
        wanted = self.wants_laws
        self._steps += 1
        drawn = q.sum(axis=-1) > 0
        if not wanted or not drawn.any():
            return
        p, q = p[drawn][:4], q[drawn][:4]
        likely = (q > 1e-6).any(axis=0)  # the others, nearly all, hardly matter and are expensive to raise to a power
        p, q = (law[:, likely].astype(np.float64) for law in (p, q))
        laws = each_tempered(q, [factor / self.factor for factor in FACTORS])
        self._overlap = self._overlap * 0.8 + [overlap(p, law).mean() for law in laws]
        self._weight = self._weight * 0.8 + 1
        best = int(np.argmax(self._overlap))
        now = FACTORS.index(self.factor)
        if self._overlap[best] > self._overlap[now] + 0.005 * self._weight:
            self.factor = FACTORS[best]
