"""The scheduler, which admits, steps and ends requests; and the contract of the steppers that make target calls.

There are two steppers. The eager one (engine/eager) serves any model by any rule. The graph one (engine/graph) replays
a captured CUDA graph and serves what that graph can do. Requests of both kinds share the scheduler's rows.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from draftproof.engine.detokenize import Piece
from draftproof.engine.request import Request
from draftproof.engine.trace import Step
from draftproof.errors import DraftproofError


class Outcome(NamedTuple):
    """The result of a step for one request: tokens, or an error that ends it."""

    request: Request
    step: Step | None = None
    shape: str = ""  # of the draft, where a tuner chose it
    error: Exception | None = None


class Stepper(Protocol):
    """Advances the texts in its rows by one target call."""

    lookahead: int  # steps that may be in flight before the results of the first are collected

    def join(self, requests: Sequence[Request]) -> None:
        """Give rows to requests with one prompt; it is prefilled with the next step."""
        ...

    def leave(self, requests: Sequence[Request]) -> None:
        """Free the rows of requests that have ended."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether a row holds a text."""
        ...

    @property
    def needs_results(self) -> bool:
        """Whether the next launch depends on what the steps in flight have written."""
        ...

    def launch(self) -> Any:
        """Start a step of all rows; returns a handle for `collect`."""
        ...

    def collect(self, pending: Any) -> list[Outcome]:
        """Wait for a step and return its outcomes; requests that ended while it was in flight are left out."""
        ...

    def learn(self, pending: Any) -> None:
        """Let tuners learn from a step that was collected and absorbed."""
        ...

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that drafting adds, by purpose."""
        ...


class Scheduler:
    """At most `rows` texts at once, each with the stepper that can serve it."""

    def __init__(self, rows: int, stepper_for: Callable[[Request], Stepper]) -> None:
        self.rows = rows
        self._stepper_for = stepper_for
        self._waiting: deque[list[Request]] = deque()  # requests of a group start together
        self._running: dict[Request, Stepper] = {}
        self._flights: dict[Stepper, deque[Any]] = {}  # steps that were launched and not collected yet
        self._unsent: list[tuple[Request, list[Piece]]] = []  # of a step that an error cut short

    def add(self, requests: Sequence[Request]) -> None:
        """Queue requests with one prompt and one sampling; they start together and share what they can."""
        if len(requests) > self.rows:
            raise DraftproofError(f"there are only {self.rows} rows for {len(requests)} texts: open more rows")
        self._waiting.append(list(requests))

    @property
    def room(self) -> int:
        """How many more texts could start now, counting a row for each."""
        return self.rows - len(self._running) - sum(map(len, self._waiting))

    @property
    def is_finished(self) -> bool:
        return not (self._waiting or self._running or self._unsent or any(self._flights.values()))

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that drafting adds, by purpose, over all steppers."""
        total: Counter[str] = Counter()
        for stepper in self._flights:
            total.update(stepper.memory)
        return dict(total)

    def close(self, steppers: Sequence[Stepper]) -> bool:
        """Let idle steppers go; false if one of them is busy."""
        idle = all(not stepper.is_busy and not self._flights.get(stepper) for stepper in steppers)
        for stepper in steppers if idle else ():
            self._flights.pop(stepper, None)
        return idle

    def __contains__(self, request: Request) -> bool:
        return request in self._running or any(request in group for group in self._waiting)

    def admit(self) -> None:
        """Give free rows to waiting requests, in order."""
        while self._waiting and len(self._waiting[0]) <= self.rows - len(self._running):
            group = self._waiting.popleft()
            try:
                stepper = self._stepper_for(group[0])
                self._flights.setdefault(stepper, deque())
                stepper.join(group)
            except Exception as error:  # the target rejects it
                for request in group:
                    request.fail(error)
                raise
            self._running.update(dict.fromkeys(group, stepper))

    def cancel(self, request: Request, error: Exception | None = None) -> None:
        """Cancel a request, or let it fail with an error; its text so far is kept. A finished one is left unchanged."""
        if request.finish:
            return
        if request not in self:
            raise DraftproofError("this request belongs to another engine: cancel it where it was added")
        self._tell(request, request.cancel() if error is None else request.fail(error))
        for group in self._waiting:
            if request in group:
                group.remove(request)
        self._waiting = deque(group for group in self._waiting if group)
        if request in self._running:
            self._running.pop(request).leave([request])

    def step(self) -> list[tuple[Request, list[Piece]]]:
        """Admit waiting requests, make one target call in each stepper, and return the new pieces of text.

        If a request cannot go on, such as one whose processor raises, its error is raised here. It has ended then, and
        the others go on in the next step, unaffected.
        """
        self.admit()
        errors: list[Exception] = []
        for stepper, flight in self._flights.items():
            while flight and stepper.needs_results:
                errors += self._collect(stepper, flight.popleft())
            if stepper.is_busy:
                flight.append(stepper.launch())
            while flight and (len(flight) > stepper.lookahead or not stepper.is_busy):
                errors += self._collect(stepper, flight.popleft())
        if errors:
            raise errors[0]
        return self.take()

    def take(self) -> list[tuple[Request, list[Piece]]]:
        """The pieces that were not returned yet: after an error, those of the step that raised it."""
        pieces, self._unsent = self._unsent, []
        return pieces

    def _tell(self, request: Request, pieces: list[Piece]) -> None:
        """Hand out the last pieces of a text that was ended from outside, with the next step."""
        if pieces:
            self._unsent.append((request, pieces))

    def _collect(self, stepper: Stepper, pending: Any) -> list[Exception]:
        """Absorb a step's tokens; returns the errors of requests that cannot go on."""
        errors: list[Exception] = []
        ended: list[Request] = []
        for request, step, shape, error in stepper.collect(pending):
            if error is not None:
                self._tell(request, request.fail(error))
                errors.append(error)
            elif step is not None:
                self._unsent.append((request, request.absorb(step)))
                if shape:
                    request.trace.shapes[shape] += 1
            if request.finish:
                ended.append(request)
        stepper.learn(pending)
        for request in ended:
            del self._running[request]
        if ended:
            stepper.leave(ended)
        return errors
