"""What the engine learns about its own steps: how long a call takes, how far guesses get, how hot to draw them.

Nothing here changes a law: it only decides what is guessed in steps to come.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import median_low as median  # of two times the smaller: the larger may be a hiccup
from typing import Any, Protocol

import numpy as np

from draftproof.law import overlap
from draftproof.theory.plan import tempered

LONGEST = 16  # guesses in a row
RECENT = 7  # times kept for each size of call
SIMILAR_SIZES = 9  # calls of up to so many times the smallest lie near a line
PRIOR_COUNT = 6  # measurements that this line counts for
FADE = 0.96  # how much of what was known is left after one more step: about the last 25 count
FACTORS = (0.7, 0.85, 1.0, 1.15)  # of the draft's temperature


class Costs(Protocol):
    """What steps take."""

    def add(self, tokens: int, levels: int, seconds: Mapping[str, float]) -> None:
        """A call with so many tokens after so many levels of guesses."""
        ...

    @property
    def known(self) -> bool: ...

    def has(self, tokens: int) -> bool:
        """Whether a call with so many tokens is known, and not only supposed."""
        ...

    def draft(self, levels: int) -> float:
        """So many levels of guesses."""
        ...

    def call(self, tokens: int) -> float:
        """Everything but guessing, for a call with so many tokens in all rows together."""
        ...


class Clock:
    """Measured times: medians of the last few, which a hiccup does not move, and lines between them."""

    def __init__(self, enough: int = 3) -> None:
        """`enough`: times of one size of call, to go by them."""
        self._enough = enough
        self._calls: dict[int, deque[float]] = {}
        self._levels: dict[int, deque[float]] = {}
        self._sizes: list[int] = []
        self._times: list[float] = []
        self._first = self._slope = 0.0  # seconds: of starting to guess, and of each level

    def add(self, tokens: int, levels: int, seconds: Mapping[str, float]) -> None:
        rest = sum(spent for phase, spent in seconds.items() if phase != "draft")
        self._calls.setdefault(tokens, deque(maxlen=RECENT)).append(rest)
        if levels:
            self._levels.setdefault(levels, deque(maxlen=RECENT)).append(seconds["draft"])
            self._line()
        self._sizes = sorted(self._calls)
        first = median(self._calls[self._sizes[0]])
        middle = [first] + [median([*self._calls[n], _supposed(first, n / self._sizes[0])]) for n in self._sizes[1:]]
        made = _even(self._sizes, middle, [len(self._calls[n]) for n in self._sizes])
        self._times = list(accumulate(made, max))  # more never takes less: where it seems to, that is noise

    @property
    def known(self) -> bool:
        return any(len(times) >= self._enough for times in self._calls.values())

    def has(self, tokens: int) -> bool:
        return tokens in self._calls

    def draft(self, levels: int) -> float:
        if not levels:
            return 0.0
        return self._first + self._slope * levels if self._levels else 0.05 * self._times[0] * levels

    def _line(self) -> None:
        """The first level may take longer than the others: a line, if several numbers of levels were measured."""
        made = {count: median(times) for count, times in self._levels.items()}
        few, many = min(made), max(made)
        each = min(time / count for count, time in made.items())
        slope = (made[many] - made[few]) / (many - few) if many > few else each
        self._slope = min(max(slope, each / 2), each)  # two measurements make a line, but hardly a true one
        self._first = max(median(time - self._slope * count for count, time in made.items()), 0.0)

    def call(self, tokens: int) -> float:
        sizes, times = self._sizes, self._times
        place = bisect_left(sizes, tokens)
        if place < len(sizes) and sizes[place] == tokens:
            return times[place]
        if place == 0 or len(sizes) == 1:
            return _supposed(times[0], tokens / sizes[0])
        beyond = place == len(sizes)
        low, high = (0, place - 1) if beyond else (place - 1, place)
        slope = (times[high] - times[low]) / (sizes[high] - sizes[low])
        least = 0.02 * times[0] / sizes[0] if beyond else 0.0  # beyond what was measured nothing is free
        return times[place - 1] + max(slope, least) * (tokens - sizes[place - 1])


def _even(sizes: Sequence[int], times: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Times of calls of like size, which lie near a line, moved towards it: the less, the more often they were taken.

    Measured at different times on a machine that does other things too, neighbours can seem far apart.
    """
    near = [i for i, size in enumerate(sizes) if size <= SIMILAR_SIZES * sizes[0]]
    if len(near) < 3:
        return list(times)
    total = sum(counts[i] for i in near)
    x, y = (sum(counts[i] * one[i] for i in near) / total for one in (sizes, times))
    slope = sum(counts[i] * (sizes[i] - x) * times[i] for i in near) / sum(
        counts[i] * (sizes[i] - x) ** 2 for i in near
    )
    made = list(times)
    for i in near:
        line = y + max(slope, 0.0) * (sizes[i] - x)
        made[i] = (counts[i] * times[i] + PRIOR_COUNT * line) / (counts[i] + PRIOR_COUNT)
    return made


def _supposed(plain: float, times: float) -> float:
    """Of a call with that many times the tokens, before it was measured, and against a single measurement."""
    return plain * (0.95 + 0.05 * times)


class Nominal:
    """Costs that are not measured but assumed, in units of a plain step: decisions made with them can be repeated."""

    known = True

    def __init__(self, slope: float, level: float) -> None:
        """`slope`: what one more token adds to a call; `level`: a level of guesses."""
        self.slope, self.level = slope, level

    def has(self, tokens: int) -> bool:
        return True

    def draft(self, levels: int) -> float:
        return self.level * levels

    def add(self, tokens: int, levels: int, seconds: Mapping[str, float]) -> None:
        """Nothing to learn."""

    def call(self, tokens: int) -> float:
        return 1 + self.slope * (tokens - 1)


class Survival:
    """How far guesses get, what is older counting less.

    P(accepted >= i) is a product of ratios, P(>= i) / P(>= i - 1). A ratio that was hardly seen is taken to be that of
    the position before it, the first one to be `start`.
    """

    START, DOUBT = 0.4, 0.5

    def __init__(self, start: float = START, doubt: float = DOUBT, longest: int = 0, fade: float = FADE) -> None:
        """`doubt`: how many steps an expectation counts for; as steps are seen it comes down to DOUBT."""
        self._start, self._doubt, self._fade = start, doubt, fade
        self._reached = np.zeros(LONGEST)  # sums of P(accepted >= i) over steps that could tell
        self._before = np.zeros(LONGEST)  # sums of P(accepted >= i - 1) over the same steps
        self._sent = np.zeros(LONGEST)  # how often a call went that deep
        self._asked = np.zeros(LONGEST)  # how often it could have
        self._guessed = self._steps = 1.0
        self.longest = longest  # that was asked for where there was a guess
        self.seen = 0  # steps with a guess

    def add(self, asked: int, sent: int, rows: Sequence[Sequence[float]]) -> None:
        """A step that asked for `asked` levels and sent `sent`, with P(accepted >= 1, 2, ...) of each row."""
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
        """It was long ago: believe half of it."""
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
        ratio, chance, found = self._start, 1.0, []
        for hit, base in zip(self._reached.tolist(), self._before.tolist(), strict=True):
            ratio = min((hit + self._doubt * ratio) / (base + self._doubt), 1.0)
            chance *= ratio
            found.append(chance)
        return found

    @property
    def deep(self) -> list[float]:
        """How often a call with guesses goes 1, 2, ... deep if it may."""
        return list(((self._sent + self.DOUBT) / (self._asked + self.DOUBT)).tolist())


class Temper:
    """Which factor on the draft's temperature lets most guesses pass: each is judged on rows p and q of past steps.

    The overlap sum min(p, q) is what one guess is accepted with, and it is computed for every factor from the one q
    that was used, so nothing has to be tried out.
    """

    EVERY = 16  # steps; the first few are looked at one by one

    def __init__(self) -> None:
        self.factor = 1.0
        self._overlap = np.zeros(len(FACTORS))
        self._weight = 0.0
        self._steps = 0

    @property
    def wants_laws(self) -> bool:
        """Whether the next step's laws are worth looking at."""
        return self._steps < 4 or self._steps % self.EVERY == 0

    def learn(self, p: Any, q: Any) -> None:
        """Laws [B, V] after the last committed token; a q of zero says nothing."""
        wanted = self.wants_laws
        self._steps += 1
        drawn = q.sum(axis=-1) > 0
        if not wanted or not drawn.any():
            return
        p, q = p[drawn][:4], q[drawn][:4]
        likely = (q > 1e-6).any(axis=0)  # the others, nearly all, hardly count and are dear to raise to a power
        p, q = p[:, likely], q[:, likely]
        laws = [tempered(q, factor / self.factor) for factor in FACTORS]
        self._overlap = self._overlap * 0.8 + [overlap(p, law).mean() for law in laws]
        self._weight = self._weight * 0.8 + 1
        best = int(np.argmax(self._overlap))
        now = FACTORS.index(self.factor)
        if self._overlap[best] > self._overlap[now] + 0.005 * self._weight:
            self.factor = FACTORS[best]
