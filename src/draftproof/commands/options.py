"""Parse comma-separated numbers of command-line options."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from draftproof.errors import DraftproofError

Number = TypeVar("Number", int, float)


def numbers(text: str, kind: Callable[[str], Number], name: str) -> tuple[Number, ...]:
    """Parse numbers separated by commas.

    >>> numbers("1,8,32", int, "batch")
    (1, 8, 32)
    """
    try:
        return tuple(kind(word) for word in text.split(","))
    except ValueError as error:
        raise DraftproofError(f"{name} takes numbers separated by commas, not {text!r}") from error
