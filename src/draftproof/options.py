"""What commands check before they begin: numbers with commas, files to be read, files to be written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from draftproof.errors import DraftproofError

Number = TypeVar("Number", int, float)


def numbers(text: str, kind: Callable[[str], Number], name: str) -> tuple[Number, ...]:
    """
    >>> numbers("1,8,32", int, "batch")
    (1, 8, 32)
    """
    try:
        return tuple(kind(word) for word in text.split(","))
    except ValueError as error:
        raise DraftproofError(f"{name} takes numbers with commas between them, not {text!r}") from error


def read_text(path: Path, what: str) -> str:
    """A file's text; `what` it holds, in the plural, is for the complaint."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DraftproofError(f"{what} cannot be read from {path} ({error.strerror}): check the path") from error
    except UnicodeDecodeError as error:
        raise DraftproofError(f"{path} is not UTF-8 text (byte {error.start}): save it as such") from error


def check_writable(path: Path, what: str) -> None:
    """Complain before the work is done, not after; nothing is left behind."""
    known = path.exists()
    try:
        path.open("a").close()
        if not known:
            path.unlink()
    except OSError as error:
        raise DraftproofError(f"{what} cannot be written to {path} ({error.strerror}): choose another place") from error
