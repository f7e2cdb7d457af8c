"""Tune how many levels the graph stepper drafts, down to none where drafting does not pay.

The speed of each length follows from acceptance and from times on the device. Every length is a graph to capture, so a
change must promise a gain, and short texts see none. Exact: a step's length depends on past steps only.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from draftproof.draft import Tree
from draftproof.engine.tuning.estimates import Survival
from draftproof.engine.tuning.tuner import StepReport

LENGTHS = (0, 2, 3, 5)
EVERY = 32  # steps between decisions
GAIN = 1.05  # a change must be so many times as fast
SURE = 1.3  # times the estimated speed of plain sampling, above which it is not measured
SAMPLE = 4  # plain steps to measure their time
PROBE = 8  # steps with a draft that test whether it pays again, ...
PAUSE, LONGEST_PAUSE = 64, 1024  # ... after so many plain ones


class Pace:
    """A Tuner that cuts one tree to as many levels as pay; every number of levels is a graph of its own."""

    tunes = True
    factor, least = 1.0, 0.0
    wants_laws = False

    def __init__(self, largest: Tree, hope: float) -> None:
        """`hope`: prior acceptance of the first draft token."""
        self.example, self.size = largest, largest.size
        self.length = self._last_drafting = LENGTHS[-1]
        self._survival = Survival(hope)
        self._calls: dict[int, deque[float]] = {}  # seconds of all but drafting, by length
        self._level: deque[float] = deque(maxlen=EVERY)
        self._until = EVERY  # steps to the next decision
        self._pausing, self._pause = False, PAUSE

    @property
    def tree(self) -> Tree:
        return self.example.cut(self.length)

    def expect(self, rows: int, joining: bool) -> None:
        """Nothing depends on it: a graph has as many rows in every step."""

    def learn(self, report: StepReport) -> None:
        """Record a step: its times, and how many draft tokens were accepted in each row."""
        length, seconds = report.asked.depth[-1], report.seconds
        accepted = [step.accepted for step in report.steps]
        self._calls.setdefault(length, deque(maxlen=EVERY)).append(seconds["target"] + seconds["verify"])
        if length:
            self._survival.add(length, length, [(1.0,) * count for count in accepted])
            self._level.append(seconds["draft"] / length)
        self._until -= 1
        if self._until <= 0:
            self._until = EVERY
            self._decide()

    def speed(self, length: int) -> float:
        """Estimated tokens per second of a row; a call costs as much as the measured one of the nearest length."""
        nearest = min(self._calls, key=lambda measured: abs(measured - length))
        drafting = length * median(self._level) if self._level else 0.0
        return (1 + sum(self._survival.reached[:length])) / max(median(self._calls[nearest]) + drafting, 1e-9)

    def _decide(self) -> None:
        if self._pausing:
            self._pausing = False
            self._survival.doubt()
            self.length, self._until = self._last_drafting, PROBE
            return
        if 0 not in self._calls and self.speed(self.length) < SURE * self.speed(0):
            self.length, self._until = 0, SAMPLE
            return
        best = max(LENGTHS, key=self.speed)
        if best == 0:
            self.length, self._pausing = 0, True
            self._until, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        else:
            if self.length == 0 or self.speed(best) > GAIN * self.speed(self.length):
                self.length = best
            self._last_drafting, self._pause = self.length, PAUSE
