"""Errors as OpenAI's interface has them: a status, a message, and the parameter that is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.responses import JSONResponse

from draftproof.errors import DraftproofError, nearest

RETRY = 1  # seconds after which a client may ask again


class ApiError(Exception):
    """What a client is told instead of an answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, headers=self.headers)


def refused(param: str | None, error: str | DraftproofError, code: str | None = None) -> ApiError:
    """A request that cannot be served as it is, because of this parameter."""
    return ApiError(400, str(error), param=param, code=code)


def unavailable(status: str) -> ApiError:
    """The model is not there yet, or no longer."""
    message = {"loading": "the model is being loaded: try again soon", "draining": "the server is shutting down"}
    return ApiError(503, message.get(status, status), code=status, headers={"Retry-After": str(RETRY)})


def invalid(errors: Sequence[Mapping[str, Any]], known: Sequence[str] = ()) -> ApiError:
    """The first parameter that a model of the protocol does not take; `known` are the names that it has."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return ApiError(400, "the body is not JSON")
    place = [part for part in first["loc"] if part != "body"]
    if not place:
        return ApiError(400, "the body must be a JSON object, with Content-Type application/json")
    param = _param(place)
    if first["type"] == "extra_forbidden":
        near = nearest(str(place[-1]), known, cutoff=0.7) if len(place) == 1 else None
        return refused(param, f"unknown parameter {param!r}" + (f": did you mean {near!r}?" if near else ""))
    if first["type"] == "missing":
        return refused(param, f"{param} is missing")
    reasons = dict.fromkeys(_lower(error["msg"]) for error in errors if error["loc"][:2] == first["loc"][:2])
    return refused(param, f"{param}: {', or '.join(reasons)}")


def _param(place: Sequence[Any]) -> str:
    """A place in the body as OpenAI writes it: messages[0].role. What names a type of a union is left out."""
    name = ""
    for part in place:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int") and part.islower():
            name += f".{part}" if name else part
        elif not name:
            name = part
    return name


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
