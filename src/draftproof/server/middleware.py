"""What every request passes: the API key, the size of its body, headers, and a net under errors of the server."""

from __future__ import annotations

import asyncio
import hmac

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftproof.server.errors import ApiError
from draftproof.server.faults import internal_error
from draftproof.server.service import Service

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
SLOWEST_BODY = 30.0  # seconds


class Gate:
    """Lets requests through to the endpoints, and turns whatever goes wrong into an error object."""

    def __init__(self, app: ASGIApp, service: Service, key: str | None, public: frozenset[str]) -> None:
        """`public` are the paths that need no key."""
        self._app, self._service, self._public = app, service, public
        self._key = None if key is None else key.strip().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def sends(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            try:
                self._check_key(scope)
                body = await self._body(scope, receive)
                await self._app(scope, _replayed(body, receive), sends)
            except ApiError as error:
                await error.response(scope, receive, sends)
        except Exception as error:
            self._service.metrics.fault(type(error).__name__)
            found = internal_error(error)
            if begun:
                raise ConnectionAbortedError(found.message) from None  # the client sees that its answer is cut off
            await found.response(scope, receive, sends)

    def _check_key(self, scope: Scope) -> None:
        if self._key is None or scope["path"] in self._public:
            return
        kind, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("latin-1"), self._key):
            raise ApiError(
                401,
                "the API key is missing or wrong: send it as Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body, if it is not too large and comes in time."""
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return b""
        limit = self._service.limits.body
        too_large = ApiError(413, f"the body is larger than {limit} bytes: send less", code="body_too_large")
        length = Headers(scope=scope).get("content-length", "0")
        if length.isdecimal() and int(length) > limit:
            raise too_large
        try:
            body = await asyncio.wait_for(_read(receive, limit), SLOWEST_BODY)
        except asyncio.TimeoutError:
            raise ApiError(408, f"the body has not come within {SLOWEST_BODY:g} seconds") from None
        if body is None:
            raise too_large
        return body


async def _read(receive: Receive, limit: int) -> bytes | None:
    """The body, or None if it is larger than the limit; what came until the client went away."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if sum(map(len, parts)) > limit:
            return None
        if message["type"] != "http.request" or not message.get("more_body", False):
            return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """First the body that was read, then whatever comes, such as that the client goes away."""
    first = [body]

    async def receives() -> Message:
        if first:
            return {"type": "http.request", "body": first.pop(), "more_body": False}
        return await receive()

    return receives
