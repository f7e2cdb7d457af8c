"""Many texts in one step: requests share target calls, and samples share every context they have in common."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from draftproof.draft import Tree
from draftproof.draws import Draw
from draftproof.engine.detokenize import Piece
from draftproof.engine.eager.propose import reason
from draftproof.engine.eager.rows import Row
from draftproof.engine.eager.step import Outcome, RowsError, Rule, step
from draftproof.engine.memory import of_draft, of_drafter, of_slots
from draftproof.engine.request import Request
from draftproof.engine.tuning.shapes import Auto, name
from draftproof.errors import DraftproofError
from draftproof.models.base import Model, guests, sessions


class Batch:
    """Requests in the rows of one target session and of a session for each drafter.

    Requests that start from the same prompt occupy one row until their texts part; then the row is copied. A row whose
    texts are finished is given to the last row, so the rows in use are always the first ones.

    Drafters are guests: if one fails, the texts go on without them. What went wrong may be over soon, so when the next
    request comes they are asked again, in new sessions.
    """

    def __init__(
        self,
        target: Model,
        drafts: Sequence[Model],
        rule: Rule,
        tree: Tree | Auto,
        draw: Draw,
        size: int,
        capacity: int,
    ) -> None:
        self.rule, self.tree, self.draw = rule, tree, draw
        self.vocabulary = target.vocabulary
        self.size, self.capacity = size, capacity
        self.drafts = drafts
        self.target, self.drafters = sessions(target, drafts, size, capacity)
        self.rows: list[list[Request]] = []
        self._fresh = False  # whether a prompt is still to be read
        self._largest = {"laws": 0, "noise": 0}  # bytes

    def add(self, requests: Sequence[Request]) -> None:
        """Requests with one prompt and one sampling, which start together; others may join between any two steps."""
        if len(requests) > self.room:
            raise DraftproofError(f"the batch has room for {self.room} more texts, not {len(requests)}: step first")
        same = self._waiting(requests[0])
        if same is not None:
            same += requests
            return
        self.target.join(len(self.rows), requests[0].prompt)
        self.rows.append(list(requests))
        with self._as_guests():
            unread = self.rows[-1:]
            if not self.drafters:
                self.drafters, unread = guests(self.target, self.drafts, self.size, self.capacity), self.rows
            for drafter in self.drafters:
                for row, (one, *_) in enumerate(unread, start=len(self.rows) - len(unread)):
                    drafter.join(row, (*one.prompt, *one.tokens))
        self._fresh = True

    def _waiting(self, request: Request) -> list[Request] | None:
        """Requests that have the same prompt still to be read and go on from it in the same way: they can share it.

        Not where there are guesses, which they would share too: then a text would depend on its neighbours.
        """
        for requests in [] if self.drafts else self.rows:
            one = requests[0]
            if not one.trace.steps and (one.prompt, one.sampling) == (request.prompt, request.sampling):
                return requests
        return None

    def __contains__(self, request: Request) -> bool:
        return any(request in requests for requests in self.rows)

    @property
    def room(self) -> int:
        """How many more texts fit: in the end each may need a row of its own."""
        return self.size - sum(map(len, self.rows))

    @property
    def is_finished(self) -> bool:
        return not self.rows

    def cancel(self, request: Request) -> None:
        """Give a text up; what it has said so far stays in it."""
        request.finish = "cancelled"
        for row, requests in enumerate(self.rows):
            if request in requests:
                requests.remove(request)
                if not requests:
                    self._retire(row)
                return

    def step(self) -> list[tuple[Request, list[Piece]]]:
        """One target call: what each request said in it.

        Requests that cannot go on end, their error in them; the first of these is raised. The others can go on.
        """
        start = time.perf_counter()
        rows = [self._row(requests) for requests in self.rows]
        tree = self.tree.cut(max(row.depth for row in rows)) if self.drafters else Tree.chain(0)
        errors: dict[int, Exception] = {}
        try:
            outcome = step(rows, self.target, self.drafters, self.rule, tree, self.draw, self.vocabulary)
        except RowsError as failed:
            errors = failed.errors
        for row, error in reversed(errors.items()):
            for request in self.rows[row]:
                request.fail(error)
            self._retire(row)
        if errors:
            raise next(iter(errors.values()))  # out here, where it keeps its own cause and context
        if outcome.failure is not None:
            self._give_up(outcome.failure)
        said, rest = [], []
        for branch in outcome.branches:
            requests = [self.rows[branch.row][m] for m in branch.members]
            for request in requests:
                said.append((request, request.absorb(branch.step)))
                if request.pace is not None or isinstance(self.tree, Auto):
                    request.trace.shapes[name(tree.cut(rows[branch.row].depth))] += 1
            rest.append([request for request in requests if not request.finish])
        self.rows = rest
        self._learn(rows, tree, outcome, start)
        for row in reversed(range(len(self.rows))):
            if not self.rows[row]:
                self._retire(row)
        return said

    def _learn(self, rows: Sequence[Row], asked: Tree, outcome: Outcome, start: float) -> None:
        """What the step took, and what it teaches those who choose the shape of the next one."""
        steps = [branch.step for branch in outcome.branches]
        seconds = steps[0].seconds  # all branches share it
        seconds["overhead"] = time.perf_counter() - start - sum(seconds.values())
        self._largest = max(self._largest, of_draft(outcome.draft, outcome.p), key=lambda size: size["laws"])
        if isinstance(self.tree, Auto):
            laws = self._laws(outcome, range(len(rows))) if self.tree.curious else None
            self.tree.learn(asked, outcome.draft.tree, steps, seconds, self._fresh, laws)
        for branch, requests in zip(outcome.branches, self.rows, strict=True):
            for request in requests:
                if request.pace is not None:
                    laws = self._laws(outcome, [branch.row]) if request.pace.curious else None
                    sent = Tree.chain(branch.step.depth)
                    request.pace.learn(asked.cut(rows[branch.row].depth), sent, [branch.step], seconds, laws=laws)
        self._fresh = False

    def _laws(self, outcome: Outcome, rows: Sequence[int]) -> tuple[np.ndarray, np.ndarray] | None:
        """p and q after the last committed tokens of some rows, where a temperature shaped q."""
        draft = outcome.draft
        if draft.q.shape[-1] == 0 or draft.tree.size == 1 or any(one.speaks != "logits" for one in self.drafters):
            return None
        p, q = (law[list(rows), 0] for law in (draft.p, draft.q))
        p = p if outcome.names is None else p[:, outcome.names]  # what cannot be guessed does not count
        if hasattr(p, "cpu"):
            p, q = p.cpu(), q.cpu()
        return np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64)

    @property
    def added(self) -> dict[str, int]:
        """Bytes that guessing has added to memory, by purpose, in its largest step so far."""
        if not self.drafters:
            return {}
        slots, drafters = of_slots(self.target, self.tree.size), sum(map(of_drafter, self.drafters))
        return {"slots": slots, **self._largest, "drafters": drafters}

    def _row(self, requests: list[Request]) -> Row:
        one = requests[0]
        tuner = one.pace or (self.tree if isinstance(self.tree, Auto) else None)
        members = tuple(request.member for request in requests)
        return Row(
            one.prompt,
            tuple(one.tokens),
            one.sampling,
            one.guessing(tuner.factor if tuner else 1.0),
            members,
            len(one.trace.steps),
            max(r.reach for r in requests),
        )

    def _retire(self, row: int) -> None:
        last = len(self.rows) - 1
        if row != last:
            self.target.copy(last, row)
            with self._as_guests():
                for drafter in self.drafters:
                    drafter.copy(last, row)
            self.rows[row] = self.rows[last]
        self.rows.pop()

    @contextmanager
    def _as_guests(self) -> Iterator[None]:
        """What drafters do in here may fail."""
        try:
            yield
        except Exception as error:
            self._give_up(reason(error))

    def _give_up(self, failure: str) -> None:
        self.drafters = []
        for request in (request for requests in self.rows for request in requests):
            request.trace.failures[failure] += 1
