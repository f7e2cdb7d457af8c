"""The texts of one request while they are generated: in the queue, in the engine, and until the client has them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NamedTuple

from draftproof.engine.request import Output
from draftproof.engine.worker import Update
from draftproof.errors import DraftproofError
from draftproof.models.base import Model
from draftproof.server.errors import RETRY, ApiError, refused
from draftproof.server.limits import Ticket
from draftproof.server.service import Service
from draftproof.server.texts import TextRequest

if TYPE_CHECKING:
    from draftproof.engine.async_engine import AsyncRequest


class Pending(NamedTuple):
    """One prompt of a request in the engine."""

    number: int
    texts: AsyncRequest
    ticket: Ticket


class Generation:
    """All texts of a request; its updates wait here for a client that reads slowly, and the engine waits for nobody.

    async with Generation(service, request) as generation:
        async for index, update in generation.updates(): ...
    """

    def __init__(self, service: Service, request: TextRequest) -> None:
        self.service, self.request = service, request
        self.finishes: set[str] = set()
        self._news: asyncio.Queue[tuple[int, Update] | Exception | None] = asyncio.Queue()
        self._pending: list[Pending] = []
        self._tokens = 0  # written so far

    async def __aenter__(self) -> Generation:
        """Queue the request, and wait until the engine has checked it."""
        service, request = self.service, self.request
        engine = service.loaded.engine
        if request.form is not None:
            await _compile(request, request.form, engine.target)
        tickets = service.line.enter(len(request.prompts), request.n)
        service.running.add(self)
        try:
            for number, (ids, settings) in enumerate(zip(request.prompts, request.settings, strict=True)):
                texts = engine.add_request(ids, n=request.n, **settings)
                self._pending.append(Pending(number, texts, tickets[number]))
        except BaseException:
            service.running.discard(self)
            for ticket in tickets:
                ticket.leave()
            raise
        self._tasks = [asyncio.ensure_future(self._follow(pending)) for pending in self._pending]
        self._all = asyncio.ensure_future(self._close())
        self._deadline = asyncio.get_running_loop().call_later(service.limits.timeout, self.abort)
        service.tell_queue()
        try:
            for pending in self._pending:
                await pending.texts.accepted()
        except DraftproofError as error:
            await self.__aexit__()
            named = {"draft", "verify", "tree"} & request.settings[0].keys()
            raise refused("draftproof" if named else None, error) from error
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        """Cancel what still runs: the client is gone, or does not want more."""
        self._deadline.cancel()
        self.abort()

    def abort(self) -> None:
        """End all texts before the next step; what they have so far stays."""
        for pending in self._pending:
            pending.texts.cancel()

    async def updates(self) -> AsyncIterator[tuple[int, Update]]:
        """Each update with the number of its choice; raises what a text failed with."""
        while (news := await self._news.get()) is not None:
            if isinstance(news, DraftproofError):
                raise refused(None, news) from news
            if isinstance(news, Exception):
                raise news
            yield news

    @property
    def outputs(self) -> list[Output]:
        """The text of every choice so far."""
        return [output for pending in self._pending for output in pending.texts.outputs]

    @property
    def tokens_in_use(self) -> int:
        """Tokens in the KV cache, about: of prompts and of what was written."""
        return sum(map(len, self.request.prompts)) + self._tokens

    def check_started(self) -> None:
        """Raise if the request ended before it had a row: there is nothing to show for it."""
        if self.finishes == {"cancelled"} and not self._tokens:
            raise ApiError(
                503,
                f"the request has waited longer than {self.service.limits.timeout:g} seconds, or the server stops",
                code="timeout",
                headers={"Retry-After": str(RETRY)},
            )

    async def _follow(self, pending: Pending) -> None:
        """Take the updates of one prompt's texts as they come."""
        number, texts, ticket = pending
        last = dict.fromkeys(range(self.request.n), self.request.asked)
        begun: set[int] = set()
        try:
            async for update in texts.updates():
                self._count(pending, update, last, begun)
                self._news.put_nowait((number * self.request.n + update.sample, update))
        except Exception as error:
            self.abort()
            self._news.put_nowait(error)
        finally:
            ticket.leave()

    def _count(self, pending: Pending, update: Update, last: dict[int, float], begun: set[int]) -> None:
        service, now = self.service, time.perf_counter()
        first = update.sample not in begun and bool(update.steps)
        prompt = len(self.request.prompts[pending.number]) if first and not begun else 0
        reused = pending.texts.outputs[update.sample].trace.reused if prompt else 0
        service.metrics.update(update, now - last[update.sample], first, prompt)
        service.recent.add(update.steps)
        last[update.sample] = now
        begun |= {update.sample} if update.steps else set()
        self._tokens += len(update.tokens)
        if update.finish:
            self.finishes.add(update.finish)
            pending.ticket.end()
            for reason in pending.texts.outputs[update.sample].trace.failures:
                service.metrics.drafter_off(reason)
        service.tell_queue(reused)

    async def _close(self) -> None:
        """The engine is done with all texts, whether the client has read them or not."""
        await asyncio.gather(*self._tasks)
        self.service.running.discard(self)
        self.service.tell_queue()
        self._news.put_nowait(None)


async def _compile(request: TextRequest, form: str, target: Model) -> None:
    """Compile the grammar in a thread of its own: neither the engine nor other clients wait for it."""
    from draftproof.models.grammars import start

    sampling = request.settings[0]["sampling"]
    assert sampling is not None
    assert sampling.grammar is not None
    try:
        await asyncio.to_thread(start, sampling.grammar, target, tuple(sampling.ends))
    except DraftproofError as error:
        raise refused(form, error) from error
