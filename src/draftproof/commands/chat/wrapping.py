"""Break lines between words as text streams in; a terminal breaks them anywhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from rich.cells import cell_len

if TYPE_CHECKING:
    from draftproof.engine.detokenize import Piece

NEAR = 24  # cells before the edge where a word waits for its end; longer words are broken by the terminal
RUNS = re.compile(r"[ \t]|[\r\n]|[^ \t\r\n]+")


def wrapped(pieces: Iterable[Piece], width: Callable[[], int]) -> Iterator[Piece]:
    """The pieces with line breaks between words where the next word does not fit into `width()` cells."""
    line = _Line(width)
    for piece in pieces:
        for run in RUNS.findall(piece.text):
            yield from line.add(piece._replace(text=run))
    yield from line.word()


class _Line:
    """The line being written: how far it is filled, and a word near its end that may have to go to the next line."""

    def __init__(self, width: Callable[[], int]) -> None:
        self.width = width
        self.filled = 0  # cells
        self.held: list[Piece] = []
        self.inside = False  # a word's beginning is on the screen already

    def add(self, run: Piece) -> Iterator[Piece]:
        if run.text in ("\r", "\n"):
            yield from self.word()
            self.filled = 0
            yield run
        elif run.text in (" ", "\t"):
            yield from self.word()
            size = 1 if run.text == " " else 8 - self.filled % 8
            full = self.filled + size > self.width()
            self.filled = 0 if full else self.filled + size
            yield run._replace(text="\n") if full else run
        elif self.held or self.filled + cell_len(run.text) > self.width() - NEAR:
            self.held.append(run)
            if self._wide(run.text) or self.filled + self._size > self.width():
                yield from self._release()
        else:
            self.inside = True
            self.filled += cell_len(run.text)
            yield run

    def word(self) -> Iterator[Piece]:
        """The word is complete."""
        yield from self._release()
        self.inside = False

    @property
    def _size(self) -> int:
        return sum(cell_len(piece.text) for piece in self.held)

    def _release(self) -> Iterator[Piece]:
        """Write what was held back, on a new line if it does not fit."""
        size, wide = self._size, any(self._wide(piece.text) for piece in self.held)
        if self.filled + size > self.width() and self.filled and not self.inside and not wide:
            yield self.held[0]._replace(text="\n")
            self.filled = 0
        if size:
            self.inside = True
            self.filled = (self.filled + size - 1) % self.width() + 1  # the terminal breaks what is longer
        yield from self.held
        self.held = []

    @staticmethod
    def _wide(text: str) -> bool:
        """Whether it may be broken anywhere, as Chinese may."""
        return cell_len(text) > len(text)
