"""The endpoints of the server: OpenAI's, vLLM's /tokenize and /detokenize, and those for people who run it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from draftproof.server import protocol
from draftproof.server.delivery import TextResponse
from draftproof.server.errors import ApiError, invalid, refused, unavailable
from draftproof.server.middleware import Gate
from draftproof.server.protocol import ChatBody, CompletionBody, DetokenizeBody, TextBody, TokenizeBody
from draftproof.server.service import Service
from draftproof.server.texts import TextRequest, chat_request, completion_request, text_of, tokenized

PAGE = Path(__file__).parent / "page"
BODIES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}


def create_app(service: Service, *, key: str | None = None, origins: Sequence[str] = ()) -> FastAPI:
    """The ASGI application; `origins` are the web sites whose pages may use it."""
    app = FastAPI(
        title="draftproof",
        version=version("draftproof"),
        description=protocol.__doc__ or "",
        docs_url=None,  # FastAPI's pages load scripts from other hosts
        redoc_url=None,
    )
    pages = {f"/{path.name}": path for path in sorted(PAGE.iterdir()) if path.is_file()}
    pages["/"] = PAGE / "index.html"
    app.include_router(_operation(service))
    app.include_router(_texts(service))
    app.include_router(_tokens(service))
    for path, file in pages.items():
        app.add_route(path, _page(file), include_in_schema=False)
    for error, handler in HANDLERS.items():
        app.add_exception_handler(error, handler)
    app.add_middleware(Gate, service=service, key=key, public=frozenset({*pages, "/health"}))
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(origins), allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    return app


def _page(file: Path) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        return FileResponse(file)

    return page


def _operation(service: Service) -> APIRouter:
    """Health, metrics and numbers for the page."""
    router = APIRouter()

    @router.get("/health")
    async def health() -> Response:
        """Whether the server takes requests: 503 while the model is loading and while the server shuts down."""
        if service.status == "ready":
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": service.status}, 503, headers=unavailable(service.status).headers)

    @router.get("/stats")
    async def stats() -> dict[str, Any]:
        """Rows in use, requests that wait, speed, and how well drafting works now."""
        return service.stats()

    @router.get("/metrics")
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        service.tell_queue()
        text, content_type = service.metrics.text()
        return Response(text, headers={"Content-Type": content_type})

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model that is served."""
        return {"object": "list", "data": [_model(service)]}

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """One model by its name."""
        service.loaded.model.check(name)
        return _model(service)

    return router


def _model(service: Service) -> dict[str, Any]:
    model = service.loaded.model
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "draftproof",
        "max_model_len": model.length,
    }


def _texts(service: Service) -> APIRouter:
    """The two endpoints that generate text."""
    router = APIRouter()

    @router.post("/v1/completions", response_class=JSONResponse)
    async def completions(body: CompletionBody) -> Response:
        """Continue a prompt, or several."""
        return await respond("completion", completion_request, body)

    @router.post("/v1/chat/completions", response_class=JSONResponse)
    async def chat_completions(body: ChatBody) -> Response:
        """Answer the last message of a conversation."""
        return await respond("chat", chat_request, body)

    async def respond(kind: str, reads: Callable[..., TextRequest], body: TextBody) -> Response:
        model = service.loaded.model
        service.metrics.request_started(kind)
        try:
            request = await service.read(reads, body, model)
        except ApiError:
            service.metrics.request_ended(kind, "refused")
            raise
        return TextResponse(service, request)

    return router


def _tokens(service: Service) -> APIRouter:
    """Text to token ids and back."""
    router = APIRouter()

    @router.post("/tokenize")
    async def tokenize(body: TokenizeBody) -> dict[str, Any]:
        """Token ids of a prompt or of messages."""
        model = service.loaded.model
        ids = await service.read(tokenized, body, model)
        names = [service.loaded.words.text(token) for token in ids] if body.return_token_strs else None
        return {"count": len(ids), "max_model_len": model.length, "tokens": list(ids), "token_strs": names}

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> dict[str, Any]:
        """The text of token ids."""
        model = service.loaded.model
        model.check(body.model)
        strange = [token for token in body.tokens if not 0 <= token < model.target.vocabulary]
        if strange:
            raise refused("tokens", f"token id {strange[0]} is outside the vocabulary of {model.target.vocabulary}")
        return {"prompt": await service.read(text_of, model.target, body.tokens, True)}

    return router


# Errors


async def _api_error(request: Request, error: Any) -> Response:
    response: Response = error.response
    return response


async def _wrong_body(request: Request, error: Any) -> Response:
    body = BODIES.get(request.url.path)
    return invalid(error.errors(), tuple(body.model_fields) if body else ()).response


async def _http_error(request: Request, error: Any) -> Response:
    messages = {404: "unknown path", 405: f"this path does not take {request.method}"}
    message = messages.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, message, headers=error.headers).response


HANDLERS: dict[type[Exception], Any] = {
    ApiError: _api_error,
    RequestValidationError: _wrong_body,
    HTTPException: _http_error,
}
