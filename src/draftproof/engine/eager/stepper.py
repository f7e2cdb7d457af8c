"""The eager stepper, for any model and any rule; samples of one prompt share a row until their texts differ."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from draftproof.draft import Tree
from draftproof.engine.eager.arrivals import FEW, MOST, Arrivals
from draftproof.engine.eager.method import Method
from draftproof.engine.eager.prefixes import KeptTexts, Prefix
from draftproof.engine.eager.rows import Row, on_host
from draftproof.engine.eager.step import Branch, RowsError, StepResult, now, step
from draftproof.engine.memory import OutOfMemory, draft_bytes, too_long
from draftproof.engine.request import Request
from draftproof.engine.scheduler import Outcome
from draftproof.engine.trace import shape_name
from draftproof.engine.tuning import StepReport, Tuner
from draftproof.errors import first_line
from draftproof.models.base import (
    Model,
    Prefills,
    cache_bytes,
    draft_sessions,
    facts,
    offers,
    predict,
    prefill,
    rejoin,
    sessions,
    slot_bytes,
)
from draftproof.native import step as native


class EagerPending(NamedTuple):
    """A step that was made: its rows and tree, its result, or the errors of rows that failed."""

    start: tuple[float, float]  # by both clocks of `step.now`
    rows: list[Row]
    asked: Tree
    result: StepResult | None
    errors: dict[int, Exception]
    unread: list[Outcome]  # of requests whose prompt could not be read


class EagerStepper:
    """Requests in the rows of one target session and of a session for each drafter.

    Requests that start from the same prompt occupy one row until their texts differ; then the row is copied. The last
    row moves to the place of a finished one, so the rows in use are always the first ones.

    With `kept`, the sessions have more rows: one in which a prompt is read in parts, while others are written, and some
    in which texts that ended wait for prompts that begin the same.

    If a drafter fails, the texts go on without drafting. The cause may be temporary, so drafters are opened again in
    new sessions when the next request joins.
    """

    lookahead = 0
    needs_results = False

    def __init__(
        self,
        target: Model,
        drafts: Sequence[Model],
        method: Method,
        tuner: Tuner,
        rows: int,
        capacity: int,
        kept: int | None = None,
    ) -> None:
        self.method, self.tuner = method, tuner
        self.size, self.capacity = rows if kept is None else rows + 1 + kept, capacity
        self.drafts = drafts
        self.target, self.drafters = sessions(target, drafts, self.size, capacity)
        if facts(target).trained and facts(target).device == "cpu":
            native.prepare()
        self.rows: list[list[Request]] = []
        self.reads_ahead = kept is not None and offers(self.target, Prefills) is not None
        self.kept = KeptTexts(range(rows + 1, self.size) if self.reads_ahead else range(0))
        self._arrivals, self._door = Arrivals(), rows  # prompts to be read, and the row for that
        self._fresh = False  # whether a prompt has still to be prefilled
        self._largest = {"laws": 0, "noise": 0}  # bytes
        # what tuners learn from: elsewhere the thread waits for a device, and on some systems that clock is coarse
        fine = time.get_clock_info("thread_time").resolution < 1e-4
        self._counts_busy = fine and facts(target).device == "cpu"

    def join(self, requests: Sequence[Request]) -> None:
        """Give a row to requests with one prompt and one sampling, which start together."""
        same = self._same_prompt(requests[0])
        if same is not None:
            same += requests
            return
        if not self.drafters:
            with self._tolerating_drafters():
                self.drafters = draft_sessions(self.target, self.drafts, self.size, self.capacity)
                for row, (request, *_) in enumerate(self.rows):
                    for drafter in self.drafters:
                        drafter.session.join(row, (*request.prompt, *request.tokens))
        if self._must_wait(requests[0]):
            self._arrivals.groups.append(list(requests))
            return
        self._place(len(self.rows), requests)
        self.rows.append(list(requests))
        self._fresh = True

    def _must_wait(self, request: Request) -> bool:
        """Whether a prompt has to be read in parts: it is long, or would hold up texts that are being written."""
        if not self.reads_ahead or self._arrivals:
            return self.reads_ahead
        prefix = self._prefix(request)
        unread = len(request.prompt) - (0 if prefix is None else prefix.length)
        others = any(first.trace.steps for first, *_ in self.rows)
        return unread > (FEW if others else MOST)

    def _prefix(self, request: Request) -> Prefix | None:
        """The longest beginning of the prompt that some row has read."""
        if not self.reads_ahead:
            return None
        running = [(row, (*first.prompt, *first.tokens)) for row, (first, *_) in enumerate(self.rows)]
        return self.kept.longest(request.prompt, running)

    def _place(self, row: int, requests: Sequence[Request]) -> None:
        """Start a row of all sessions with the prompt of these requests."""
        prompt, prefix = requests[0].prompt, self._prefix(requests[0])
        if prefix is not None:
            self.target.copy(prefix.row, row)
        rejoin(self.target, row, prompt, 0 if prefix is None else prefix.length)
        for request in requests:
            request.trace.reused = 0 if prefix is None else prefix.length
        with self._tolerating_drafters(requests):
            for drafter in self.drafters:
                if prefix is not None:
                    drafter.session.copy(prefix.row, row)
                rejoin(drafter.session, row, prompt, 0 if prefix is None else prefix.length)
                if requests[0].prediction:
                    predict(drafter.session, row, requests[0].prediction)

    def _read_ahead(self) -> list[Outcome]:
        """Read a part of the first prompt that waits; once it is read, its requests get a row."""
        if not self._arrivals:
            return []
        start, group = time.perf_counter(), self._arrivals.groups[0]
        try:
            if not self._arrivals.is_reading:
                self._place(self._door, group)
                self._arrivals.is_reading = True
            count = self._arrivals.part(beside_others=bool(self.rows))
            read = prefill(self.target, self._door, count)
        except Exception as error:  # the target rejects this prompt
            return [Outcome(request, error=error) for request in self._arrivals.pop()]
        with self._tolerating_drafters(group):
            readers = self.drafters if any(map(_drafters_read_ahead, group)) else []
            read = all([read, *(prefill(drafter.session, self._door, count) for drafter in readers)])
        if read:
            self._copy(self._door, len(self.rows))
            self.rows.append(self._arrivals.pop())
        seconds = time.perf_counter() - start
        if not read:  # else it was shorter
            self._arrivals.measure_part(count, seconds)
        for request in group:
            request.trace.prefill += seconds
        return []

    def _same_prompt(self, request: Request) -> list[Request] | None:
        """The row of requests with the same prompt and sampling that have not started yet, to share its prefill.

        Not with a draft: they would share draft tokens too, and a text would depend on its neighbours.
        """
        for requests in [] if self.drafts else [*self.rows, *self._arrivals.groups]:
            first = requests[0]
            if not first.trace.steps and (first.prompt, first.sampling) == (request.prompt, request.sampling):
                return requests
        return None

    @property
    def is_busy(self) -> bool:
        return bool(self.rows or self._arrivals)

    def leave(self, requests: Sequence[Request]) -> None:
        """Free the rows of requests, unless others share them."""
        ended, before = set(requests), self.rows
        self._arrivals.drop(ended)
        self.rows = [[request for request in row if request not in ended] for row in self.rows]
        for row in reversed(range(len(self.rows))):  # the last rows first, so that fewer rows move
            if not self.rows[row]:
                self._keep(row, before[row][0])
                self._retire(row)

    def _keep(self, row: int, request: Request) -> None:
        """Keep the text of a row for later prompts; of several samples of a prompt, the first one's."""
        if request.finish == "failed" or request.key.request:
            return
        place = self.kept.row_for((*request.prompt, *request.tokens))
        if place is not None:
            self._copy(row, place)

    def launch(self) -> EagerPending:
        """Read a part of a prompt that waits, and make one step of all rows."""
        unread, start = self._read_ahead(), now()
        if not self.rows:
            return EagerPending(start, [], Tree.chain(0), None, {}, unread)
        self._announce()
        rows = [self._row(requests) for requests in self.rows]
        asked = self.tuner.tree.cut(max(row.depth for row in rows)) if self.drafters else Tree.chain(0)
        try:
            result = step(rows, self.target, self.drafters, self.method, asked)
        except RowsError as failed:
            return EagerPending(start, rows, asked, None, failed.errors, unread)
        except OutOfMemory:
            return EagerPending(start, rows, asked, None, self._too_long(), unread)
        return EagerPending(start, rows, asked, result, {}, unread)

    def _announce(self) -> None:
        """Tell the tuners what texts the next step has."""
        texts: dict[Tuner, list[Request]] = {self.tuner: [requests[0] for requests in self.rows]}
        for request in (request for requests in self.rows for request in requests):
            if request.tuner is not None:
                texts.setdefault(request.tuner, []).append(request)
        for tuner, own in texts.items():
            tuner.expect(len(own), any(not request.trace.steps for request in own))

    def _too_long(self) -> dict[int, Exception]:
        """When memory is short, the row with the longest prompt that this step was to read; else raises again."""
        unread = {row: first for row, (first, *_) in enumerate(self.rows) if not first.trace.steps}
        if not unread:
            raise
        row = max(unread, key=lambda row: len(unread[row].prompt))
        return {row: too_long(unread[row], len(self.rows) - 1)}

    def collect(self, pending: EagerPending) -> list[Outcome]:
        """The outcome of each request; if some failed, the others have not advanced."""
        if pending.result is None:
            failing = [(request, error) for row, error in pending.errors.items() for request in self.rows[row]]
            return [*pending.unread, *(Outcome(request, error=error) for request, error in failing)]
        if pending.result.failure is not None:
            self._give_up(pending.result.failure)
        branches = pending.result.branches
        self.rows = [[self.rows[branch.row][m] for m in branch.members] for branch in branches]
        return pending.unread + [
            Outcome(request, branch.step, self._shape(request, pending, branch.row))
            for branch, requests in zip(branches, self.rows, strict=True)
            for request in requests
        ]

    def _shape(self, request: Request, pending: EagerPending, row: int) -> str:
        """The shape of a row's draft, where a tuner chose it."""
        tunes = request.tuner is not None or self.tuner.tunes
        return shape_name(pending.asked.cut(pending.rows[row].depth)) if tunes else ""

    def learn(self, pending: EagerPending) -> None:
        """Complete the step's times, and let the tuners learn from it."""
        result = pending.result
        if result is None:
            return
        steps = [branch.step for branch in result.branches]
        seconds = steps[0].seconds  # all branches share it
        whole, busy = (stop - start for start, stop in zip(pending.start, now(), strict=True))
        self._arrivals.measure_step(whole)
        for spent, total in ((seconds, whole), (result.busy, busy)):
            spent["overhead"] = total - sum(spent.values())
            if self._fresh:  # the call included prefill
                spent["prompt"], spent["target"] = spent["target"], 0.0
        seconds = result.busy if self._counts_busy else seconds
        self._largest = max(self._largest, draft_bytes(result.draft, result.p), key=lambda size: size["laws"])
        laws = self._laws(result, range(len(pending.rows))) if self.tuner.wants_laws else None
        self.tuner.learn(StepReport(pending.asked, result.draft.tree, steps, seconds, self._fresh, laws))
        for tuner, branches in self._tuners(result).items():
            rows = [branch.row for branch in branches]
            laws = self._laws(result, rows) if tuner.wants_laws else None
            asked = pending.asked.cut(max(pending.rows[row].depth for row in rows))
            own = [branch.step for branch in branches]
            sent = Tree.chain(max(one.depth for one in own))
            is_shared = len(branches) < len(result.branches)
            tuner.learn(StepReport(asked, sent, own, seconds, self._fresh or is_shared, laws))
        self._fresh = False

    def _tuners(self, result: StepResult) -> dict[Tuner, list[Branch]]:
        """The tuners of requests, each with what the step brought its texts."""
        found: dict[Tuner, list[Branch]] = {}
        for branch, requests in zip(result.branches, self.rows, strict=True):
            for request in requests:
                if request.tuner is not None:
                    found.setdefault(request.tuner, []).append(branch)
        return found

    def _laws(self, result: StepResult, rows: Sequence[int]) -> tuple[np.ndarray, np.ndarray] | None:
        """p and q after the last committed tokens of some rows, if q depends on a temperature."""
        draft = result.draft
        if draft.q.shape[-1] == 0 or draft.tree.size == 1:
            return None
        if any(drafter.session.speaks != "logits" for drafter in self.drafters):
            return None
        p, q = (law[list(rows), 0] for law in (draft.p, draft.q))
        p = p if result.draft_tokens is None else p[:, result.draft_tokens]  # only tokens that can be drafted count
        return on_host(p), on_host(q)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that drafting has added, by purpose, in its largest step so far."""
        if not self.drafts:
            return {}
        slots = slot_bytes(self.target, self.tuner.size)
        drafters = sum(cache_bytes(drafter.session) for drafter in self.drafters)
        return {"slots": slots, **self._largest, "drafters": drafters}

    def _row(self, requests: list[Request]) -> Row:
        first, tuner = requests[0], requests[0].tuner or self.tuner
        reach = max(request.reach for request in requests)
        longest = max(request.depth for request in requests)
        if not tuner.tunes or self._would_wait(first):
            longest = min(longest, reach, tuner.tree.depth[-1])
        return Row(
            prompt=first.prompt,
            output=tuple(first.tokens),
            sampling=first.sampling,
            draft_sampling=first.tempered(tuner.factor),
            members=tuple(request.key for request in requests),
            step=len(first.trace.steps),
            depth=reach,
            top_logprobs=max((r.top_logprobs for r in requests if r.top_logprobs is not None), default=None),
            state=first.state,
            room=longest,
            least=tuner.least,
        )

    def _would_wait(self, request: Request) -> bool:
        """Whether texts without a grammar, tuned together with this one, would wait for all that its grammar is sure
        of: on a CPU more tokens take more time."""
        return self._counts_busy and any(
            first.state is None and first.tuner is request.tuner for first, *_ in self.rows
        )

    def _retire(self, row: int) -> None:
        last = len(self.rows) - 1
        if row != last:
            self._copy(last, row)
            self.rows[row] = self.rows[last]
        self.rows.pop()

    def _copy(self, source: int, target: int) -> None:
        """Make a row of all sessions the same as another."""
        self.target.copy(source, target)
        with self._tolerating_drafters():
            for drafter in self.drafters:
                drafter.session.copy(source, target)

    @contextmanager
    def _tolerating_drafters(self, joining: Sequence[Request] = ()) -> Iterator[None]:
        """Errors of drafters in this block stop drafting, not the texts: those in rows and those that are joining."""
        try:
            yield
        except Exception as error:
            self._give_up(first_line(error), joining)

    def _give_up(self, failure: str, joining: Sequence[Request] = ()) -> None:
        self.drafters = []
        for request in (request for requests in (*self.rows, joining) for request in requests):
            request.trace.failures[failure] += 1


def _drafters_read_ahead(request: Request) -> bool:
    """Whether drafters read its prompt beside the target. Later, a long one would hold up all texts for a step."""
    may_later = request.depth > 0 and request.tuner is not None and request.tuner.tunes
    return request.reach > 0 or (may_later and len(request.prompt) > MOST)
