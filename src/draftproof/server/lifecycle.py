"""The life of a server process: listen at once, load in the background, drain when told to stop."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from draftproof.errors import DraftproofError
from draftproof.server.service import Service

if TYPE_CHECKING:
    from draftproof.engine.async_engine import AsyncEngine

LAST_WORDS = 5  # seconds that clients have to read the end of their answers once the texts are over


class Process(uvicorn.Server):
    """uvicorn, which on a signal first lets the running texts finish; a second signal ends it at once."""

    def __init__(self, app: FastAPI, service: Service) -> None:
        config = uvicorn.Config(
            app,
            log_level="critical",  # our own log has what goes wrong, and no request is logged
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=LAST_WORDS,
        )
        super().__init__(config)
        self._service = service
        self._draining: asyncio.Task[None] | None = None
        self._is_told = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called for SIGTERM and SIGINT."""
        if self._is_told:
            os._exit(128 + sig)
        self._is_told = True
        self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._draining = asyncio.ensure_future(self._drained())

    async def _drained(self) -> None:
        await self._service.drain()
        self.should_exit = True

    async def live(self, listener: socket.socket, opens: Callable[[], tuple[AsyncEngine, str]]) -> None:
        """Serve until told to stop; raises if the model cannot be loaded."""
        self._loop = asyncio.get_running_loop()
        loading = asyncio.ensure_future(self._service.load(opens))
        loading.add_done_callback(self._loaded)
        try:
            await self.serve(sockets=[listener])
        finally:
            if loading.done():
                await self._service.close()
        if loading.done():
            loading.result()

    def _loaded(self, loading: asyncio.Future[None]) -> None:
        if not loading.cancelled() and loading.exception() is not None:
            self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """A socket at this address."""
    if not 0 <= port < 2**16:  # getaddrinfo takes any number, and means another port
        raise DraftproofError(f"--port must be from 0 to 65535, not {port}")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise DraftproofError(f"unknown host {host!r} ({error.strerror}): give an address of this machine") from error
    listener = socket.socket(family, kind)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen()  # clients that come before the server is up wait in line
    except OSError as error:
        listener.close()
        raise DraftproofError(f"cannot listen at {host}:{port} ({error}): choose another --host or --port") from error
    return listener


def run(app: FastAPI, service: Service, listener: socket.socket, opens: Callable[[], tuple[AsyncEngine, str]]) -> None:
    """Serve until a signal; returns once all is over."""
    asyncio.run(Process(app, service).live(listener, opens))
    sys.stdout.flush()
