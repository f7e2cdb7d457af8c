"""The folders for models and history, and files that the user asks to read or to write."""

from __future__ import annotations

import os
from pathlib import Path

from draftproof.errors import DraftproofError


def cache_folder() -> Path:
    """Where models are stored: $DRAFTPROOF_CACHE, else the user's cache folder."""
    chosen, base = os.environ.get("DRAFTPROOF_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if chosen:
        return Path(chosen)
    try:
        return (Path(base) if base else Path.home() / ".cache") / "draftproof"
    except RuntimeError as error:
        raise DraftproofError(
            "this user has no home folder: set DRAFTPROOF_CACHE to a folder to keep models in"
        ) from error


def state_folder() -> Path | None:
    """Where what a user typed is kept: draftproof's part of $XDG_STATE_HOME; None for a user without a home folder."""
    base = os.environ.get("XDG_STATE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".local" / "state") / "draftproof"
    except RuntimeError:
        return None


def read_text(path: Path, what: str) -> str:
    """Read a text file; `what` names its contents, in the plural, in error messages."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DraftproofError(f"{what} cannot be read from {path} ({error.strerror}): check the path") from error
    except UnicodeDecodeError as error:
        raise DraftproofError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from error


def check_writable(path: Path, what: str) -> None:
    """Raise before the work begins if a file cannot be written; leaves no file behind."""
    existed = path.exists()
    try:
        path.open("a").close()
        if not existed:
            path.unlink()
    except OSError as error:
        raise DraftproofError(f"{what} cannot be written to {path} ({error.strerror}): choose another path") from error
