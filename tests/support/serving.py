"""A real server on a free port, in a thread of this process, and its clients."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
import openai

from draftproof import AsyncEngine, load
from draftproof.server.app import create_app
from draftproof.server.lifecycle import Process, listen
from draftproof.server.limits import ServerLimits
from draftproof.server.service import Service

DRAFT = "ngram"


@cache
def tiny() -> Any:
    return load("tiny")


def opened(**settings: Any) -> tuple[AsyncEngine, str]:
    return AsyncEngine(tiny(), draft=DRAFT, **settings), DRAFT


@dataclass
class Running:
    """A server, seen from outside and from inside."""

    url: str
    service: Service
    process: Process

    def openai(self, **settings: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, **settings})

    def post(self, path: str, body: Any, **settings: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60, **settings)

    def get(self, path: str, **settings: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, **settings)

    def idle(self) -> None:
        """Wait until no text runs."""
        eventually(lambda: not self.service.running and not self.service.line.rows_in_use)


def eventually(holds: Callable[[], Any], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it has never become true"
        time.sleep(0.005)


@contextmanager
def serving(
    opens: Callable[[], tuple[AsyncEngine, str]] | None = None,
    *,
    key: str | None = None,
    origins: tuple[str, ...] = (),
    waits: bool = True,
    **limits: Any,
) -> Iterator[Running]:
    sizes = ServerLimits(**{"rows": 4, "length": 1024, **limits})
    service = Service("tiny", sizes)
    process = Process(create_app(service, key=key, origins=origins), service)
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    chosen = opens or (lambda: opened(rows=sizes.rows, length=sizes.length))
    thread = threading.Thread(target=lambda: asyncio.run(process.live(listener, chosen)))
    thread.start()
    try:
        eventually(lambda: process.started and (service.status == "ready" or not waits))
        yield Running(url, service, process)
    finally:
        process.handle_exit(15, None)
        thread.join(60)
    assert not thread.is_alive()
