"""Errors that a user can act on: one line that names the offending value and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from numbers import Integral
from typing import Any


class DraftproofError(ValueError):
    """An error that the caller can fix; the command line prints it as one line and exits with 2."""


class ContextError(DraftproofError):
    """A prompt has more tokens than the context of the model."""

    def __init__(self, model: str, tokens: int, context: int) -> None:
        super().__init__(f"the prompt has {tokens} tokens but the context of {model!r} has {context}: shorten it")
        self.model, self.tokens, self.context = model, tokens, context


def nearest(word: str, known: Iterable[str], cutoff: float = 0.3) -> str | None:
    """The known name that a mistyped word most resembles, for a hint; None if none is close."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)), None)


def whole(name: str, number: Any, least: int = 1) -> int:
    """Return an integer of any library as an int, or raise if it is not one of at least `least`."""
    if isinstance(number, bool) or not isinstance(number, Integral) or number < least:
        raise DraftproofError(f"{name} must be a whole number of at least {least}, not {number!r}")
    return int(number)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class name if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
