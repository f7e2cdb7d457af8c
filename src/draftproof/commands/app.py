"""The commands together: draftproof generate, chat, serve, warm, limits, distill, audit, collect, bench, list."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from draftproof.commands.audit import audit, collect
from draftproof.commands.bench import app as bench
from draftproof.commands.chat import chat
from draftproof.commands.distill import distill
from draftproof.commands.generate import generate
from draftproof.commands.limits import limits
from draftproof.commands.rules import list_rules
from draftproof.commands.serve import serve
from draftproof.commands.warm import warm

app = typer.Typer(
    help="Faster text from a language model, from exactly the model's own distribution.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _help(command: Callable[..., Any]) -> str:
    """A command's docstring, each paragraph in one line: the terminal breaks it where that ends."""
    return "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(command) or "").split("\n\n"))


for command in (generate, chat, serve, warm, limits, distill, audit, collect):
    app.command(help=_help(command))(command)
app.command("list")(list_rules)
app.add_typer(bench, name="bench")


def _version(requested: bool) -> None:
    if requested:
        from draftproof import __version__

        typer.echo(f"draftproof {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Faster text from a language model, from exactly the model's own distribution."""
