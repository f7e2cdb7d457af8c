"""How many levels a step of the graph stepper drafts: as many as have paid, and none where none do.

Acceptance and the device's own clock say what each length would bring. Every length is a graph to be recorded, so a
change must promise something and texts that are soon over see none. Exact: a step's length depends on past steps only.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from draftproof.draft import Tree
from draftproof.engine.tuning.estimates import Survival
from draftproof.engine.tuning.tuner import StepReport

LENGTHS = (0, 2, 3, 5)
EVERY = 32  # steps between decisions
GAIN = 1.05  # times the speed, or nothing is changed
SURE = 1.3  # times the estimated speed of plain sampling, where that need not be measured
SAMPLE = 4  # plain steps that tell what one takes, ...
PROBE = 8  # ... and steps that tell whether guessing pays again, ...
PAUSE, LONGEST_PAUSE = 64, 1024  # ... after so many plain ones


class Pace:
    """A Tuner that cuts one tree to as many levels as pay; every number of levels is a graph of its own."""

    tunes = True
    factor = 1.0
    wants_laws = False

    def __init__(self, largest: Tree, hope: float) -> None:
        """`hope`: chance of a first draft token before any was seen."""
        self.example, self.size = largest, largest.size
        self.length = self._guessing = LENGTHS[-1]
        self._seen = Survival(hope)
        self._calls: dict[int, deque[float]] = {}  # seconds of all but drafting, by length
        self._level: deque[float] = deque(maxlen=EVERY)
        self._until = EVERY  # steps to the next decision
        self._resting, self._pause = False, PAUSE

    @property
    def tree(self) -> Tree:
        return self.example.cut(self.length)

    def learn(self, report: StepReport) -> None:
        """Take note of a step: what it took, and how many of its draft tokens were accepted in each row."""
        length, seconds = report.asked.depth[-1], report.seconds
        accepted = [step.accepted for step in report.steps]
        self._calls.setdefault(length, deque(maxlen=EVERY)).append(seconds["target"] + seconds["verify"])
        if length:
            self._seen.add(length, length, [(1.0,) * count for count in accepted])
            self._level.append(seconds["draft"] / length)
        self._until -= 1
        if self._until <= 0:
            self._until = EVERY
            self._decide()

    def speed(self, length: int) -> float:
        """Tokens a second of a row; a call is taken to cost what the one with the nearest length did."""
        nearest = min(self._calls, key=lambda other: abs(other - length))
        drafting = length * median(self._level) if self._level else 0.0
        return (1 + sum(self._seen.reached[:length])) / max(median(self._calls[nearest]) + drafting, 1e-9)

    def _decide(self) -> None:
        if self._resting:
            self._resting = False
            self._seen.doubt()
            self.length, self._until = self._guessing, PROBE
            return
        if 0 not in self._calls and self.speed(self.length) < SURE * self.speed(0):
            self.length, self._until = 0, SAMPLE
            return
        best = max(LENGTHS, key=self.speed)
        if best == 0:
            self.length, self._resting = 0, True
            self._until, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        else:
            if self.length == 0 or self.speed(best) > GAIN * self.speed(self.length):
                self.length = best
            self._guessing, self._pause = self.length, PAUSE
