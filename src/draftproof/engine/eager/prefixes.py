"""Texts that are kept after their end, so that a prompt that begins the same need not be read again.

A kept text stays where it was computed, in rows of the sessions beyond those of running texts. A new prompt takes the
longest common prefix it finds there or in a running text; the rest of its tokens is read as usual.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

SHORTEST = 16  # tokens: a shorter prefix is read again as fast as it is copied

Tokens = Sequence[int]


class Prefix(NamedTuple):
    """The first `length` tokens of the text in a row."""

    row: int
    length: int


class KeptTexts:
    """Texts in some rows of the sessions, the least recently used one first."""

    def __init__(self, rows: range) -> None:
        self._free = list(rows)
        self._texts: OrderedDict[int, Tokens] = OrderedDict()  # by row

    def row_for(self, text: Tokens) -> int | None:
        """A row to keep this text in: that of a text which it continues, a free one, or the least recently used."""
        if len(text) < SHORTEST or not (self._free or self._texts):
            return None
        row = next((row for row, kept in self._texts.items() if common_prefix(kept, text) == len(kept)), None)
        if row is None:
            row = self._free.pop() if self._free else next(iter(self._texts))
        self._texts[row] = text
        self._texts.move_to_end(row)
        return row

    def longest(self, prompt: Tokens, running: Iterable[tuple[int, Tokens]]) -> Prefix | None:
        """The longest prefix of the prompt among kept and running texts, if it is worth copying."""
        found = [Prefix(row, common_prefix(text, prompt)) for row, text in (*self._texts.items(), *running)]
        best = max(found, key=lambda prefix: prefix.length, default=None)
        if best is None or best.length < SHORTEST:
            return None
        if best.row in self._texts:
            self._texts.move_to_end(best.row)
        return best

    @property
    def tokens(self) -> int:
        """How many tokens are kept."""
        return sum(map(len, self._texts.values()))


def common_prefix(first: Tokens, second: Tokens) -> int:
    """Length of the common prefix, found by bisection: comparing slices is much faster than comparing tokens.

    >>> common_prefix((1, 2, 3), (1, 2, 4, 5))
    2
    """
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
