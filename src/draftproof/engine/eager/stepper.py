"""The eager stepper: any model, any rule; samples of one prompt share a row until their texts part."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from draftproof.draft import Tree
from draftproof.engine.eager.method import Method
from draftproof.engine.eager.rows import Row, to_numpy
from draftproof.engine.eager.step import RowsError, StepResult, step
from draftproof.engine.memory import draft_bytes
from draftproof.engine.request import Request
from draftproof.engine.scheduler import Outcome
from draftproof.engine.trace import shape_name
from draftproof.engine.tuning import StepReport, Tuner
from draftproof.errors import first_line
from draftproof.models.base import Model, cache_bytes, draft_sessions, sessions, slot_bytes


class Pending(NamedTuple):
    """A step that was made: what it was asked for, what came of it, or whose fault it was that nothing did."""

    start: float
    rows: list[Row]
    asked: Tree
    result: StepResult | None
    errors: dict[int, Exception]


class EagerStepper:
    """Requests in the rows of one target session and of a session for each drafter.

    Requests that start from the same prompt occupy one row until their texts part; then the row is copied. A row whose
    texts are finished is given to the last row, so the rows in use are always the first ones.

    Drafters are guests: if one fails, the texts go on without them. What went wrong may be over soon, so when the next
    request comes they are asked again, in new sessions.
    """

    lookahead = 0
    needs_results = False

    def __init__(
        self, target: Model, drafts: Sequence[Model], method: Method, tuner: Tuner, rows: int, capacity: int
    ) -> None:
        self.method, self.tuner = method, tuner
        self.size, self.capacity = rows, capacity
        self.drafts = drafts
        self.target, self.drafters = sessions(target, drafts, rows, capacity)
        self.rows: list[list[Request]] = []
        self._fresh = False  # whether a prompt is still to be read
        self._largest = {"laws": 0, "noise": 0}  # bytes

    def join(self, requests: Sequence[Request]) -> None:
        """Give a row to requests with one prompt and one sampling, which start together."""
        same = self._same_prompt(requests[0])
        if same is not None:
            same += requests
            return
        self.target.join(len(self.rows), requests[0].prompt)
        self.rows.append(list(requests))
        with self._as_guests():
            unread = self.rows[-1:]
            if not self.drafters:
                self.drafters = draft_sessions(self.target, self.drafts, self.size, self.capacity)
                unread = self.rows
            for drafter in self.drafters:
                for row, (one, *_) in enumerate(unread, start=len(self.rows) - len(unread)):
                    drafter.session.join(row, (*one.prompt, *one.tokens))
        self._fresh = True

    def _same_prompt(self, request: Request) -> list[Request] | None:
        """Requests that have the same prompt still to be read and go on from it in the same way: they can share it.

        Not where there are draft tokens, which they would share too: then a text would depend on its neighbours.
        """
        for requests in [] if self.drafts else self.rows:
            one = requests[0]
            if not one.trace.steps and (one.prompt, one.sampling) == (request.prompt, request.sampling):
                return requests
        return None

    @property
    def is_busy(self) -> bool:
        return bool(self.rows)

    def leave(self, request: Request) -> None:
        """Free the row of a request, unless others share it."""
        for row, requests in enumerate(self.rows):
            if request in requests:
                requests.remove(request)
                if not requests:
                    self._retire(row)
                return

    def launch(self) -> Pending:
        """One target call for all rows."""
        start = time.perf_counter()
        rows = [self._row(requests) for requests in self.rows]
        asked = self.tuner.tree.cut(max(row.depth for row in rows)) if self.drafters else Tree.chain(0)
        try:
            return Pending(start, rows, asked, step(rows, self.target, self.drafters, self.method, asked), {})
        except RowsError as failed:
            return Pending(start, rows, asked, None, failed.errors)

    def collect(self, pending: Pending) -> list[Outcome]:
        """What became of each request; if some cannot go on, the others have not moved."""
        if pending.result is None:
            failing = [(request, error) for row, error in pending.errors.items() for request in self.rows[row]]
            return [Outcome(request, error=error) for request, error in failing]
        if pending.result.failure is not None:
            self._give_up(pending.result.failure)
        branches = pending.result.branches
        self.rows = [[self.rows[branch.row][m] for m in branch.members] for branch in branches]
        return [
            Outcome(request, branch.step, self._shape(request, pending, branch.row))
            for branch, requests in zip(branches, self.rows, strict=True)
            for request in requests
        ]

    def _shape(self, request: Request, pending: Pending, row: int) -> str:
        """The shape of a row's draft, where somebody chose it."""
        tunes = request.tuner is not None or self.tuner.tunes
        return shape_name(pending.asked.cut(pending.rows[row].depth)) if tunes else ""

    def learn(self, pending: Pending) -> None:
        """Say what the step took, and let those learn from it who choose the shape of the next one."""
        result = pending.result
        if result is None:
            return
        steps = [branch.step for branch in result.branches]
        seconds = steps[0].seconds  # all branches share it
        seconds["overhead"] = time.perf_counter() - pending.start - sum(seconds.values())
        if self._fresh:  # the target read prompts in this call
            seconds["prompt"], seconds["target"] = seconds["target"], 0.0
        self._largest = max(self._largest, draft_bytes(result.draft, result.p), key=lambda size: size["laws"])
        laws = self._laws(result, range(len(pending.rows))) if self.tuner.wants_laws else None
        self.tuner.learn(StepReport(pending.asked, result.draft.tree, steps, seconds, self._fresh, laws))
        for branch, requests in zip(result.branches, self.rows, strict=True):
            for request in requests:
                if request.tuner is not None and not request.finish:
                    laws = self._laws(result, [branch.row]) if request.tuner.wants_laws else None
                    asked, sent = pending.asked.cut(pending.rows[branch.row].depth), Tree.chain(branch.step.depth)
                    request.tuner.learn(StepReport(asked, sent, [branch.step], seconds, laws=laws))
        self._fresh = False

    def _laws(self, result: StepResult, rows: Sequence[int]) -> tuple[np.ndarray, np.ndarray] | None:
        """p and q after the last committed tokens of some rows, where a temperature shaped q."""
        draft = result.draft
        if draft.q.shape[-1] == 0 or draft.tree.size == 1:
            return None
        if any(one.session.speaks != "logits" for one in self.drafters):
            return None
        p, q = (law[list(rows), 0] for law in (draft.p, draft.q))
        p = p if result.draft_tokens is None else p[:, result.draft_tokens]  # what cannot be drafted does not count
        return to_numpy(p), to_numpy(q)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that drafting has added, by purpose, in its largest step so far."""
        if not self.drafts:
            return {}
        slots, drafters = slot_bytes(self.target, self.tuner.size), (cache_bytes(one.session) for one in self.drafters)
        return {"slots": slots, **self._largest, "drafters": sum(drafters)}

    def _row(self, requests: list[Request]) -> Row:
        one = requests[0]
        return Row(
            prompt=one.prompt,
            output=tuple(one.tokens),
            sampling=one.sampling,
            draft_sampling=one.tempered((one.tuner or self.tuner).factor),
            members=tuple(request.key for request in requests),
            step=len(one.trace.steps),
            depth=max(request.reach for request in requests),
        )

    def _retire(self, row: int) -> None:
        last = len(self.rows) - 1
        if row != last:
            self.target.copy(last, row)
            with self._as_guests():
                for drafter in self.drafters:
                    drafter.session.copy(last, row)
            self.rows[row] = self.rows[last]
        self.rows.pop()

    @contextmanager
    def _as_guests(self) -> Iterator[None]:
        """What drafters do in here may fail."""
        try:
            yield
        except Exception as error:
            self._give_up(first_line(error))

    def _give_up(self, failure: str) -> None:
        self.drafters = []
        for request in (request for requests in self.rows for request in requests):
            request.trace.failures[failure] += 1
