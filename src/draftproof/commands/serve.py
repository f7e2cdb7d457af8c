"""`draftproof serve`: an OpenAI-compatible server."""

from __future__ import annotations

import ipaddress
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.commands.shared import AnyTarget, Device, Draft, Precision, Threads, TreeShape, Verify
from draftproof.commands.text_options import check_rule, use_threads
from draftproof.errors import DraftproofError, whole

if TYPE_CHECKING:
    from draftproof.engine.async_engine import AsyncEngine

EXAMPLE = (
    "curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} "
    """-d '{{"messages": [{{"role": "user", "content": "Why is the sky blue?"}}]}}'"""
)


def serve(
    target: AnyTarget = "smollm2",
    draft: Draft = "auto",
    verify: Verify = "auto",
    tree: TreeShape = "auto",
    dtype: Precision = "float32",
    device: Device = "auto",
    threads: Threads = None,
    name: Annotated[str | None, typer.Option(help="The model's name for clients; the target's by default.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 is every network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0 chooses a free one.")] = 8000,
    rows: Annotated[int, typer.Option(help="Texts that are generated at once.")] = 8,
    length: Annotated[int, typer.Option(help="Most tokens of prompt and text.")] = 2048,
    kept: Annotated[int, typer.Option(help="Ended texts kept for prompts that begin the same.")] = 4,
    queue: Annotated[int, typer.Option(help="Prompts that may wait; beyond that, clients get 429.")] = 64,
    timeout: Annotated[float, typer.Option(help="Seconds for a request, waiting included.")] = 600.0,
    body: Annotated[int, typer.Option(help="Largest body of a request, in bytes.")] = 4 * 2**20,
    grace: Annotated[float, typer.Option(help="Seconds that running texts have after SIGTERM.")] = 30.0,
    api_key: Annotated[
        str | None, typer.Option(envvar="DRAFTPROOF_API_KEY", help="The key that clients must send.", show_envvar=True)
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="A web site whose pages may use the server; may be repeated.")
    ] = None,
) -> None:
    """Serve a model by OpenAI's interface, with every text from exactly the model's own distribution."""
    try:
        from draftproof.server.app import create_app
        from draftproof.server.lifecycle import listen, run
    except ModuleNotFoundError as error:
        raise DraftproofError(f"{error.name} is not installed: pip install 'draftproof[serve]'") from error
    from draftproof.server.limits import ServerLimits
    from draftproof.server.service import Service

    for option, seconds in (("--timeout", timeout), ("--grace", grace)):
        if not 0 <= seconds < 1e9:
            raise DraftproofError(f"{option} must be a number of seconds, not {seconds!r}")
    limits = ServerLimits(
        rows=whole("--rows", rows),
        length=whole("--length", length, least=2),
        queue=whole("--queue", queue, least=0),
        timeout=timeout,
        body=whole("--body", body),
        grace=grace,
    )
    whole("--kept", kept, least=0)
    if api_key is not None and not api_key.strip():
        raise DraftproofError("the API key is empty: give one, or leave --api-key and DRAFTPROOF_API_KEY out")
    _check_names(target, draft, verify, tree)
    use_threads(threads)
    named = name or _served_name(target)
    service = Service(named, limits)

    def opens() -> tuple[AsyncEngine, str]:
        from draftproof.engine.async_engine import AsyncEngine
        from draftproof.models import load

        settings = {"verify": verify, "tree": None if tree == "auto" else tree, "rows": rows, "length": length}
        model = load(target, dtype=dtype, device=device)
        return AsyncEngine(model, draft=draft.split(","), kept=kept, **settings), draft  # type: ignore[arg-type]

    logging.basicConfig(format="%(message)s")
    listener = listen(host, port)
    _greet(listener.getsockname(), host, named, api_key)
    run(create_app(service, key=api_key, origins=cors_origin or ()), service, listener, opens)


def _check_names(target: str, draft: str, verify: str, tree: str) -> None:
    """Raise where there cannot be such a model or rule, before the server tells its address."""
    from draftproof.models import check_drafters
    from draftproof.models.reading import check_name

    check_rule(verify, None, tree, draft)
    check_drafters(draft)
    check_name(target)


def _served_name(target: str) -> str:
    """The target's name, without the folders of this machine."""
    path = Path(target).expanduser()
    return path.resolve().name if path.exists() else target


def _greet(address: tuple[str, int], host: str, name: str, key: str | None) -> None:
    place = f"[{host}]" if ":" in host else host
    url = f"http://{place}:{address[1]}"
    if key is None and not _is_local(address[0]):
        typer.echo(f"note: {url} is open to the network without a key: give --api-key", err=True)
    typer.echo(f"draftproof serves {name} at {url}")
    typer.echo(EXAMPLE.format(url=url, key="" if key is None else ' -H "Authorization: Bearer $DRAFTPROOF_API_KEY"'))


def _is_local(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
