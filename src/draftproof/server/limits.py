"""What a server takes at once: rows, a queue in order of arrival, and sizes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from draftproof.server.errors import RETRY, ApiError


@dataclass(frozen=True)
class ServerLimits:
    """What one server allows."""

    rows: int = 8  # texts at once
    length: int = 2048  # tokens of prompt and text
    queue: int = 64  # prompts that may wait for a row
    timeout: float = 600.0  # seconds for a request, waiting included
    body: int = 4 * 2**20  # bytes of a request's body
    grace: float = 30.0  # seconds that running texts have after a signal to stop


class Ticket:
    """The place of one prompt's n texts in the queue, then their rows."""

    def __init__(self, line: WaitingLine, n: int) -> None:
        self._line, self.left = line, n

    def end(self, texts: int = 1) -> None:
        """Some of the texts have ended, or will never begin."""
        self._line.end(self, min(texts, self.left))

    def leave(self) -> None:
        """All of them have."""
        self.end(self.left)


class WaitingLine:
    """Who waits and who has rows, counted as the engine's scheduler gives rows: in order of arrival."""

    def __init__(self, rows: int, places: int) -> None:
        self.rows, self.places = rows, places
        self.rows_in_use = 0
        self._waiting: deque[Ticket] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enter(self, prompts: int, n: int) -> list[Ticket]:
        """A ticket for each of these prompts, or for none if the queue is too short for all of them."""
        now = 0 if self._waiting else max(self.rows - self.rows_in_use, 0) // n
        if self.waiting + max(prompts - now, 0) > self.places:
            raise ApiError(
                429,
                f"the queue is full ({self.waiting} of {self.places} places taken): try again later",
                code="queue_full",
                headers={"Retry-After": str(RETRY)},
            )
        tickets = [Ticket(self, n) for _ in range(prompts)]
        self._waiting += tickets
        self._admit()
        return tickets

    def end(self, ticket: Ticket, texts: int) -> None:
        ticket.left -= texts
        if ticket not in self._waiting:
            self.rows_in_use -= texts
        elif not ticket.left:
            self._waiting.remove(ticket)
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._waiting[0].left <= self.rows - self.rows_in_use:
            self.rows_in_use += self._waiting.popleft().left
