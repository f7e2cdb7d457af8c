"""The state that all requests of a server share: its engine, once it is loaded, its queue, and who is running."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from draftproof.server.errors import unavailable
from draftproof.server.limits import ServerLimits, WaitingLine
from draftproof.server.metrics import Metrics
from draftproof.server.stats import RecentSteps
from draftproof.server.texts import ServedModel, without_folders
from draftproof.server.tokens import TokenTexts

if TYPE_CHECKING:
    from draftproof.engine.async_engine import AsyncEngine
    from draftproof.server.generation import Generation

Result = TypeVar("Result")


@dataclass(frozen=True)
class Loaded:
    """What is there once the model is loaded."""

    engine: AsyncEngine
    model: ServedModel
    words: TokenTexts


class Service:
    """A server's engine and its state: loading, ready, or draining."""

    def __init__(self, name: str, limits: ServerLimits) -> None:
        self.name, self.limits = name, limits
        self.status = "loading"
        self.line = WaitingLine(limits.rows, limits.queue)
        self.metrics = Metrics(name, cache_tokens=limits.rows * limits.length)
        self.recent = RecentSteps()
        self.running: set[Generation] = set()
        self._loaded: Loaded | None = None
        self._tokenizing = ThreadPoolExecutor(1, "tokenizer")  # a tokenizer is not used by two threads at once

    # Loading

    async def load(self, opens: Callable[[], tuple[AsyncEngine, str]]) -> None:
        """Open the engine in a thread of its own; `opens` returns it with the name of its drafter."""
        loop, done = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def tell(found: Any, error: BaseException | None) -> None:
            if not done.done():
                done.set_exception(error) if error else done.set_result(found)

        def work() -> None:
            try:
                found, error = opens(), None
            except BaseException as problem:
                found, error = None, problem
            if not loop.is_closed():
                loop.call_soon_threadsafe(tell, found, error)

        threading.Thread(target=work, name="loading", daemon=True).start()  # nobody waits for it at the end
        engine, draft = await done
        self.open(engine, draft)

    def open(self, engine: AsyncEngine, draft: str) -> None:
        """Serve this engine from now on."""
        target, limits = engine.target, self.limits
        length = min(limits.length, target.context or limits.length)
        model = ServedModel(self.name, target, limits.rows, length, draft)
        self._loaded = Loaded(engine, model, TokenTexts(target.tokenizer))
        if self.status == "loading":
            self.status = "ready"

    @property
    def loaded(self) -> Loaded:
        if self._loaded is None or self.status != "ready":
            raise unavailable(self.status)
        return self._loaded

    async def read(self, work: Callable[..., Result], *given: Any) -> Result:
        """Do something with the tokenizer, without holding up the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, work, *given)

    # Running

    def tell_queue(self, reused: int = 0) -> None:
        """Count who waits and runs now, and tokens of a prompt that were in the KV cache already."""
        self.metrics.queue(self.line.waiting, self.line.rows_in_use, self.line.rows)
        self.metrics.cache(sum(one.tokens_in_use for one in self.running), reused)

    def stats(self) -> dict[str, Any]:
        """For the page."""
        setup = None if self._loaded is None else self._loaded.engine.setup
        return {
            "status": self.status,
            "model": self.name,
            "drafter": setup and without_folders(setup.drafter),
            "verifier": setup.rule.name if setup and setup.drafts else None,
            "rows": self.line.rows,
            "rows_in_use": self.line.rows_in_use,
            "waiting": self.line.waiting,
            **self.recent.as_dict(),
        }

    # Ending

    async def drain(self) -> None:
        """Take no more requests; running texts may finish within the grace, then they are ended."""
        self.status = "draining"
        loop = asyncio.get_running_loop()
        until = loop.time() + self.limits.grace
        while self.running and loop.time() < until:
            await asyncio.sleep(0.02)
        for generation in list(self.running):
            generation.abort()

    async def close(self) -> None:
        """End the engine's thread, and whatever still runs in it."""
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
        if self._loaded is not None:
            await self._loaded.engine.close(abort=True)
