"""What the server is doing now, for its page: speed, tokens per target call, acceptance."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from draftproof.engine.trace import Step, Trace

SECONDS = 10.0  # over which the speed is taken
STEPS = 1000  # over which everything else is


class RecentSteps:
    """The last steps of all texts."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque(maxlen=STEPS)
        self._arrivals: deque[tuple[float, int]] = deque()  # time, tokens
        self.tokens = 0

    def add(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self._steps.append(step)
            self._arrivals.append((time.monotonic(), len(step.tokens)))
            self.tokens += len(step.tokens)
        self._forget()

    def _forget(self) -> None:
        while self._arrivals and self._arrivals[0][0] < time.monotonic() - SECONDS:
            self._arrivals.popleft()

    def as_dict(self) -> dict[str, Any]:
        self._forget()
        recent = Trace(steps=list(self._steps))
        reached = [step.reached for step in recent.steps if step.reached]
        deepest = max(map(len, reached), default=0)
        deep = [[one[i] for one in reached if len(one) > i] for i in range(deepest)]
        return {
            "tokens": self.tokens,
            "tokens_per_s": sum(tokens for _, tokens in self._arrivals) / SECONDS,
            "tokens_per_call": recent.tokens_per_call if recent.steps else None,
            "expected_tokens_per_call": recent.expected_per_call if recent.steps else None,
            "acceptance_by_position": recent.acceptance,
            "expected_acceptance_by_position": [sum(shares) / len(shares) for shares in deep],
        }
