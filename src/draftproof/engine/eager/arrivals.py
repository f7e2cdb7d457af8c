"""Prompts that are read in parts between the steps of running texts, in order of arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from draftproof.engine.request import Request

FEW = 32  # tokens that may be read with a step of others: it is hardly longer then
LEAST, MOST = 16, 512  # tokens of a part beside running texts, and of any part


class Arrivals:
    """Groups of requests with one prompt each; the prompt of the first group is being read."""

    def __init__(self) -> None:
        self.groups: deque[list[Request]] = deque()
        self.is_reading = False  # whether the first prompt has a row
        self._rate = 0.0  # tokens a second of the last part
        self._step = 0.0  # seconds of the last step

    def __bool__(self) -> bool:
        return bool(self.groups)

    def drop(self, requests: Iterable[Request]) -> None:
        """Remove requests that were cancelled."""
        gone, first = set(requests), next(iter(self.groups), None)
        for group in self.groups:
            group[:] = [request for request in group if request not in gone]
        self.groups = deque(group for group in self.groups if group)
        if self.is_reading and next(iter(self.groups), None) is not first:
            self.is_reading = False

    def pop(self) -> list[Request]:
        """The first group, whose prompt has been read or cannot be."""
        self.is_reading = False
        return self.groups.popleft()

    def part(self, beside_others: bool) -> int:
        """How many tokens to read now: beside running texts, as many as take about as long as one of their steps."""
        return min(max(int(self._rate * self._step), LEAST), MOST) if beside_others else MOST

    def measure_part(self, tokens: int, seconds: float) -> None:
        self._rate = tokens / max(seconds, 1e-9)

    def measure_step(self, seconds: float) -> None:
        self._step = seconds
