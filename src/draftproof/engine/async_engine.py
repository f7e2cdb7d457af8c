"""AsyncEngine, astream() and agenerate(): texts for asyncio; a thread of their own makes the steps."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, overload

from draftproof.engine.arguments import (
    EngineSettings,
    Named,
    Prompt,
    RequestSettings,
    Settings,
    check_names,
    one_prompt,
)
from draftproof.engine.detokenize import Piece
from draftproof.engine.engine import Engine
from draftproof.engine.generate import prepare
from draftproof.engine.request import Output, Request
from draftproof.engine.scheduler import Scheduler
from draftproof.engine.worker import Channel, Opened, Update, Worker
from draftproof.errors import DraftproofError, whole

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack  # in typing from Python 3.11 on


class AsyncRequest:
    """A request whose text is written elsewhere: iterate for pieces, or over `updates()`.

    It is cancelled if the task that awaits it is cancelled, when an `async with` block is left, and when nobody holds
    it any more. A request that cannot go on raises its error here.
    """

    def __init__(self, worker: Worker, channel: Channel, n: int = 1, owner: object = None) -> None:
        self._worker, self._channel, self._n = worker, channel, n
        self._owner = owner  # an engine is not dropped before its requests
        weakref.finalize(self, worker.cancel, channel).atexit = False
        self._pieces: list[Piece] = []  # of the last update, in reverse

    def __aiter__(self) -> Self:
        if self._n > 1:
            raise DraftproofError(f"there are {self._n} samples: iterate over updates(), which say whose they are")
        return self

    async def __anext__(self) -> Piece:
        while not self._pieces:
            update = await self._next()
            if update is None:
                raise StopAsyncIteration
            self._pieces = list(reversed(update.pieces))
        return self._pieces.pop()

    async def updates(self) -> AsyncIterator[Update]:
        """What each step brings: pieces of text, tokens, logprobs, and the step itself."""
        while (update := await self._next()) is not None:
            yield update

    async def accepted(self) -> None:
        """Wait until the request is checked and queued; raises if its settings are wrong."""
        await asyncio.wrap_future(self._channel.accepted)

    @property
    def output(self) -> Output:
        """The text so far; complete once its `finish` says why it ended."""
        outputs = self.outputs
        if not outputs:
            raise DraftproofError("the request was not accepted yet: await accepted(), or iterate first")
        return outputs[0]

    @property
    def outputs(self) -> list[Output]:
        """The texts of all samples so far; none before the request is accepted."""
        return self._channel.outputs

    def cancel(self) -> None:
        """End the text before the next step, unless it has ended; the text so far stays in `.output`."""
        self._worker.cancel(self._channel)

    async def aclose(self) -> None:
        """Cancel the request and wait until its rows are free."""
        self.cancel()
        while True:
            try:
                if await self._channel.get() is None:
                    return
            except Exception:  # who gives a request up does not ask why it failed
                continue

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def _next(self) -> Update | None:
        try:
            return await self._channel.get()
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def _finished(self) -> list[Output]:
        """Wait for the end; all samples are given up if one fails."""
        async with self:
            async for _ in self.updates():
                pass
            return self.outputs


class AsyncEngine:
    """An Engine in a thread of its own, for any number of tasks in any event loop.

    >>> from draftproof.models.table import TableModel
    >>> coin = TableModel(lambda context: [0.5, 0.5])
    >>> async def main():
    ...     async with AsyncEngine(coin, draft=coin, rows=2) as engine:
    ...         return await asyncio.gather(*(engine.generate([0], max_new_tokens=n, seed=n) for n in (3, 5, 4)))
    >>> [len(output.tokens) for output in asyncio.run(main())]
    [3, 5, 4]
    """

    def __init__(self, target: Named, **settings: Unpack[EngineSettings]) -> None:
        """The settings are those of `Engine`."""
        self._engine = Engine(target, **settings)  # used by the worker's thread alone
        self.target, self.setup = self._engine.target, self._engine.setup
        self._worker = Worker()
        weakref.finalize(self, self._worker.stop, abort=True).atexit = False

    def add_request(self, prompt: Prompt, *, n: int = 1, **settings: Unpack[RequestSettings]) -> AsyncRequest:
        """Queue a request for n samples of one prompt, which share its prefill; it starts at once if rows are free.

        The settings are those of `Engine.add_request`. Wrong ones raise where the request is awaited.
        """
        n, engine = whole("n", n), self._engine

        def opens() -> Opened:
            return engine.scheduler, engine.add_samples(prompt, n, **settings)

        compiles = engine.setup.compiles(settings.get("sampling"))
        return AsyncRequest(self._worker, self._worker.submit(opens, compiles), n, owner=self)

    def stream(self, prompt: Prompt, **settings: Unpack[RequestSettings]) -> AsyncRequest:
        """Generate one text piece by piece: `async for piece in engine.stream(...)`."""
        return self.add_request(prompt, **settings)

    @overload
    async def generate(self, prompt: Prompt, *, n: None = None, **settings: Unpack[RequestSettings]) -> Output: ...

    @overload
    async def generate(self, prompt: Prompt, *, n: int, **settings: Unpack[RequestSettings]) -> list[Output]: ...

    async def generate(
        self, prompt: Prompt, *, n: int | None = None, **settings: Unpack[RequestSettings]
    ) -> Output | list[Output]:
        """Generate one text, or a list of `n` independent ones."""
        outputs = await self.add_request(prompt, n=1 if n is None else n, **settings)._finished()
        return outputs[0] if n is None else outputs

    async def close(self, *, abort: bool = False) -> None:
        """Take no more requests, finish those that were added, or cancel them, and end the thread."""
        self._worker.stop(abort)
        await asyncio.wrap_future(self._worker.stopped)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *error: object) -> None:
        """Finish all texts, or cancel them if the block was left by an error."""
        await self.close(abort=kind is not None)


def astream(target: Named, prompt: Prompt, **settings: Unpack[Settings]) -> AsyncRequest:
    """Generate one text piece by piece: `async for piece in astream(...)`. Settings as in `generate`."""
    return _submit(target, prompt, 1, settings)


@overload
async def agenerate(target: Named, prompt: Prompt, *, n: None = None, **settings: Unpack[Settings]) -> Output: ...


@overload
async def agenerate(target: Named, prompt: Prompt, *, n: int, **settings: Unpack[Settings]) -> list[Output]: ...


async def agenerate(
    target: Named, prompt: Prompt, *, n: int | None = None, **settings: Unpack[Settings]
) -> Output | list[Output]:
    """Generate one text, or a list of `n` independent ones, without blocking the event loop. As `generate`."""
    outputs = await _submit(target, prompt, 1 if n is None else n, settings)._finished()
    return outputs[0] if n is None else outputs


_opening = threading.Lock()
_worker: Worker | None = None


def _submit(target: Named, prompt: Prompt, n: int, settings: Any) -> AsyncRequest:
    """Give texts to the one thread that all of them share: it makes their steps in turns."""
    global _worker
    check_names(settings)
    n = whole("n", n)
    with _opening:
        if _worker is None or not _worker.is_alive:  # a process that was forked has no threads
            _worker = Worker()

        def prepared() -> tuple[Scheduler, list[Request]]:
            scheduler, [requests] = prepare(target, [one_prompt(prompt)], n, **settings)
            return scheduler, requests

        channel = _worker.submit(prepared)
        return AsyncRequest(_worker, channel, n)
