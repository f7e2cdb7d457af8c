"""Numbers with commas between them, as options of commands take them."""

from __future__ import annotations

from collections.abc import Callable
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
