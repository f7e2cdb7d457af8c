"""The door of the command line: run a command, and end in one line whatever goes wrong or whoever interrupts it.

Nothing but the standard library is imported before `main` runs, so that Ctrl-C is quiet from the first moment on.
"""

from __future__ import annotations

import io
import os
import sys

OUT_OF_MEMORY = ("out of memory", "can't allocate memory")  # torch's messages, for a GPU and for the CPU
INTERRUPTED = 130  # the exit code after Ctrl-C, as shells have it


def main() -> None:
    """Run the command line: one line and exit code 2 for errors of the user, 1 for errors of the system."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _run() -> None:
    _hide_warnings()
    _replace_unprintable()

    from draftproof.commands.app import app
    from draftproof.errors import DraftproofError

    try:
        app()
    except (DraftproofError, OSError) as error:  # OSError: such as a full disk or missing permissions
        _fail(str(error), 2 if isinstance(error, DraftproofError) else 1)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in OUT_OF_MEMORY):
            raise
        _fail("out of memory: choose a smaller model, another --dtype, or fewer and shorter texts", 1)


def _fail(message: str, code: int) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)


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


def __getattr__(name: str) -> object:
    """`app`, the commands as typer has them, is imported when it is asked for."""
    if name == "app":
        from draftproof.commands.app import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
