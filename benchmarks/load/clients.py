"""Clients of a server: one reads its stream to the end and notes when each chunk came, one never reads."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx

TIMEOUT = httpx.Timeout(300.0)


class Arrival(NamedTuple):
    """A chunk of a stream."""

    at: float  # seconds of time.perf_counter
    chunk: dict[str, Any]


class Stream(NamedTuple):
    """One stream, as far as it was read."""

    status: int
    arrivals: list[Arrival]
    is_done: bool  # whether [DONE] came
    error: dict[str, Any] | None  # the error object that came instead of an answer, or in the stream

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [choice for arrival in self.arrivals for choice in arrival.chunk.get("choices", ())]

    @property
    def text(self) -> str:
        """The text of a stream with one choice."""
        return "".join(text_of(choice) for choice in self.choices)

    @property
    def finishes(self) -> int:
        """Choices that have ended."""
        return sum(choice["finish_reason"] is not None for choice in self.choices)

    @property
    def times(self) -> list[float]:
        """When chunks with text came."""
        return [arrival.at for arrival in self.arrivals if any(map(text_of, arrival.chunk.get("choices", ())))]

    @property
    def tokens(self) -> int:
        """Tokens of the text; the request must have asked for usage."""
        return sum((arrival.chunk.get("usage") or {}).get("completion_tokens", 0) for arrival in self.arrivals)


def text_of(choice: dict[str, Any]) -> str:
    """The text in a choice of a chunk or of a whole answer."""
    inner = choice.get("delta") or choice.get("message") or {}
    return choice.get("text") or inner.get("content") or ""


async def read(
    client: httpx.AsyncClient,
    url: str,
    body: dict[str, Any],
    chunks: int | None = None,
    leave: asyncio.Event | None = None,
) -> Stream:
    """Read a stream to its end, or go away after some chunks, or when told to."""
    arrivals: list[tuple[float, str]] = []
    is_done = False
    async with client.stream("POST", url, json={**body, "stream": True}, timeout=TIMEOUT) as answer:
        if answer.status_code != 200:
            return Stream(answer.status_code, [], False, error_of(await answer.aread()))
        async for line in _lines(answer):
            if line == "data: [DONE]":
                is_done = True
            elif line:
                arrivals.append((time.perf_counter(), line.removeprefix("data: ")))
            if (chunks is not None and len(arrivals) >= chunks) or (leave is not None and leave.is_set()):
                break
    found = [Arrival(at, json.loads(line)) for at, line in arrivals]  # later, as this takes the server's time too
    errors = [arrival.chunk for arrival in found if "error" in arrival.chunk]
    return Stream(200, found, is_done, errors[0]["error"] if errors else None)


async def _lines(answer: httpx.Response) -> AsyncIterator[str]:
    """Lines of a stream of events; httpx ends them at other characters too, which a text may contain."""
    rest = b""
    async for part in answer.aiter_bytes():
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line.decode()


def error_of(body: bytes) -> dict[str, Any] | None:
    """The error object of an answer, if it has one with all its fields."""
    try:
        found = json.loads(body)["error"]
        return found if {"message", "type", "param", "code"} <= found.keys() else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


async def open_silent(url: str, body: dict[str, Any]) -> socket.socket:
    """Send a request for a stream and never read; the socket takes as little as the system allows."""
    content = json.dumps({**body, "stream": True}).encode()
    return await send_raw(url, content, len(content))


async def send_raw(url: str, content: bytes, length: int) -> socket.socket:
    """Send this body under a length that may be wrong."""
    place = urlsplit(url)
    head = f"POST {place.path} HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {length}\r\n\r\n"
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, (place.hostname, place.port))
    await loop.sock_sendall(connection, head.encode() + content)
    return connection
