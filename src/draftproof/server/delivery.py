"""How an answer reaches its client, and that its texts are cancelled when the client goes away."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from draftproof.server.answers import Answer, Part, event
from draftproof.server.errors import ApiError
from draftproof.server.faults import internal_error
from draftproof.server.generation import Generation
from draftproof.server.service import Service
from draftproof.server.texts import TextRequest

SLOW = 30.0  # seconds that a client has to read the rest, after its time is over
OUTCOMES = {"end": "stop", "stop": "stop", "length": "length", "context": "length", "cancelled": "abort"}


class TextResponse(Response):
    """The texts that a client asks for; they are generated while the response is sent."""

    def __init__(self, service: Service, request: TextRequest) -> None:
        super().__init__()
        self._service, self._request = service, request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = self._service.limits.timeout + SLOW
        await _unless_gone(self._deliver(scope, receive, send), receive, limit)

    async def _deliver(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, request = self._service, self._request
        loaded = service.loaded
        outcome = "abort"
        try:
            async with Generation(service, request) as generation:
                answer = Answer(request, loaded.model, loaded.words)
                sends = _stream if request.stream else _whole
                await sends(generation, answer, lambda response: response(scope, receive, send), send)
                outcome = _outcome(generation)
        except ApiError as error:
            outcome = "refused" if error.status < 500 else "abort"
            raise
        except Exception:
            outcome = "error"
            raise
        finally:
            service.metrics.request_ended(request.kind, outcome, _since(request))


async def _whole(
    generation: Generation, answer: Answer, respond: Callable[[Response], Awaitable[None]], send: Send
) -> None:
    """One JSON object, once all texts are finished."""
    request = generation.request
    parts: list[list[Part]] = [[] for _ in range(len(request.prompts) * request.n)]
    async for index, update in generation.updates():
        parts[index].append(answer.part(index, update))
    generation.check_started()
    await respond(JSONResponse(answer.whole(parts, generation.outputs)))


async def _stream(
    generation: Generation, answer: Answer, respond: Callable[[Response], Awaitable[None]], send: Send
) -> None:
    """Server-sent events, a chunk for each update; an error becomes the last event."""
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    async with contextlib.aclosing(_chunks(generation, answer)) as chunks:
        async for chunk in chunks:
            await send({"type": "http.response.body", "body": event(chunk), "more_body": True})
    await send({"type": "http.response.body", "body": event("[DONE]"), "more_body": False})


async def _chunks(generation: Generation, answer: Answer) -> AsyncGenerator[dict[str, Any], None]:
    left = len(generation.request.prompts) * generation.request.n
    try:
        for chunk in answer.opening():
            yield chunk
        async for index, update in generation.updates():
            left -= bool(update.finish)
            found = answer.chunk(index, answer.part(index, update))
            if found is not None and not left:
                found["draftproof"] = answer.statistics(generation.outputs)
            if found is not None:
                yield found
        if generation.request.include_usage:
            yield answer.usage_chunk(generation.outputs)
    except ApiError as error:
        yield error.body
    except Exception as error:
        generation.service.metrics.fault(type(error).__name__)
        yield internal_error(error).body


async def _unless_gone(work: Any, receive: Receive, limit: float) -> None:
    """Do the work, unless the client goes away or takes too long to read: then it is cancelled."""
    working, going = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, going}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in (working, going):
            task.cancel()
        await asyncio.gather(working, going, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _outcome(generation: Generation) -> str:
    """How a request ended: by the worst of its texts."""
    ends = {OUTCOMES.get(finish, "error") for finish in generation.finishes}
    return next((outcome for outcome in ("error", "abort", "length") if outcome in ends), "stop")


def _since(request: TextRequest) -> float:
    return time.perf_counter() - request.asked
