"""Many texts in one step: requests share target calls, and samples share every context they have in common."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from draftproof.draft import Tree
from draftproof.draws import Draw
from draftproof.engine.auto import Auto
from draftproof.engine.laws import Row
from draftproof.engine.request import Request
from draftproof.engine.step import Rule, step
from draftproof.engine.text import Piece
from draftproof.errors import DraftproofError
from draftproof.models.session import Model, sessions


class Batch:
    """Requests in the rows of one target session and of a session for each drafter.

    Requests that start from the same prompt occupy one row until their texts part; then the row is copied. A row whose
    texts are finished is given to the last row, so the rows in use are always the first ones.
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
        self.size = size
        self.target, self.drafters = sessions(target, drafts, size, capacity)
        self.rows: list[list[Request]] = []

    def add(self, requests: Sequence[Request]) -> None:
        """Requests with one prompt and one sampling, which start together; others may join between any two steps."""
        if len(requests) > self.room:
            raise DraftproofError(f"the batch has room for {self.room} more texts, not {len(requests)}: step first")
        for session in (self.target, *self.drafters):
            session.join(len(self.rows), requests[0].prompt)
        self.rows.append(list(requests))

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
        """One target call: what each request said in it."""
        rows = [self._row(requests) for requests in self.rows]
        tree = self.tree.cut(max(row.depth for row in rows)) if self.drafters else Tree.chain(0)
        outcome = step(rows, self.target, self.drafters, self.rule, tree, self.draw, self.vocabulary)
        if outcome.failure is not None:
            self.drafters = []
        if isinstance(self.tree, Auto):
            self.tree.learn(tree, [branch.step for branch in outcome.branches])
            for request in chain(*self.rows):
                request.trace.tree = self.tree.name
        said, rest = [], []
        for branch in outcome.branches:
            requests = [self.rows[branch.row][m] for m in branch.members]
            for request in requests:
                said.append((request, request.absorb(branch.step)))
                if outcome.failure is not None:
                    request.trace.failures[outcome.failure] += 1
            rest.append([request for request in requests if not request.finish])
        self.rows = rest
        for row in reversed(range(len(self.rows))):
            if not self.rows[row]:
                self._retire(row)
        return said

    def _row(self, requests: list[Request]) -> Row:
        one = requests[0]
        members = tuple(request.member for request in requests)
        return Row(
            one.prompt,
            tuple(one.tokens),
            one.sampling,
            one.draft_sampling,
            members,
            len(one.trace.steps),
            max(r.depth for r in requests),
        )

    def _retire(self, row: int) -> None:
        last = len(self.rows) - 1
        if row != last:
            for session in (self.target, *self.drafters):
                session.copy(last, row)
            self.rows[row] = self.rows[last]
        self.rows.pop()
