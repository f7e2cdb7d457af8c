"""The command line: draftproof generate, serve, limits, distill, audit, collect, bench, list."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from draftproof.commands.audit import audit, collect
from draftproof.commands.bench import app as bench
from draftproof.commands.distill import distill
from draftproof.commands.generate import generate
from draftproof.commands.limits import limits
from draftproof.commands.rules import list_rules
from draftproof.commands.serve import serve
from draftproof.errors import DraftproofError

OUT_OF_MEMORY = ("out of memory", "can't allocate memory")  # torch's messages, for a GPU and for the CPU

app = typer.Typer(
    help="Faster text from a language model, from exactly the model's own distribution.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for command in (generate, serve, limits, distill, audit, collect):
    app.command()(command)
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


def _hide_warnings() -> None:
    """Hide warnings and log messages of other packages; `python -W` brings warnings back."""
    import logging
    import warnings

    if not sys.warnoptions:
        warnings.filterwarnings("ignore", module=r"(?!draftproof)")
    logging.getLogger().setLevel(logging.ERROR)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else it warns when a download forks a process
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # else it reports every retry


def _replace_unprintable() -> None:
    """Print ? for characters that the terminal's encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def main() -> None:
    """Run the command line: one line and exit code 2 for errors of the user, 1 for errors of the system."""
    _hide_warnings()
    _replace_unprintable()
    try:
        app()
    except DraftproofError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except OSError as error:  # such as a full disk or missing permissions
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in OUT_OF_MEMORY):
            raise
        typer.echo(
            "error: out of memory: choose a smaller model, another --dtype, or fewer and shorter texts", err=True
        )
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
