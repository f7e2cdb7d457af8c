"""Detokenize as tokens arrive, where characters and stop strings may span several tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Piece(NamedTuple):
    """Some text and its origin: an "accepted" draft token, "corrected" after a rejection, or "plain"."""

    text: str
    kind: str


class Decoder:
    """Turns tokens into characters as soon as they are certain.

    A token may contain half a character, and a word's leading space may depend on its neighbour, so each call decodes a
    window that starts at the last certain token. Tokens that decode to '' do not advance the window, or the next
    leading space would be lost, as at the beginning of a text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self.silent = {number for number, token in added.items() if token.special}  # never text; may repeat for ever
        self.window: list[int] = []
        self.certain = 0  # tokens of the window whose text was returned

    def feed(self, token: int) -> str:
        if self.tokenizer is None:
            self.window.append(token)
            return (" " if len(self.window) > 1 else "") + str(token)
        if token in self.silent:
            return ""
        before = self._decode(self.window[: self.certain])
        self.window.append(token)
        now = self._decode(self.window)
        if now == before or now.endswith("�"):
            return ""
        self.window = self.window[self.certain :]
        self.certain = len(self.window)
        return now[len(before) :]

    def rest(self) -> str:
        """The remaining text at the end; an incomplete character becomes �."""
        if self.tokenizer is None:
            return ""
        return self._decode(self.window)[len(self._decode(self.window[: self.certain])) :]

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


class Stopper:
    """Passes text through up to the first stop string, and holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = stops
        self.held: list[Piece] = []

    def copy(self) -> Stopper:
        """Another one that holds the same back."""
        other = Stopper(self.stops)
        other.held = list(self.held)
        return other

    def feed(self, piece: Piece) -> tuple[list[Piece], bool]:
        """Pieces that can be shown, and whether a stop string was found."""
        self.held.append(piece)
        text = "".join(p.text for p in self.held)
        places = [text.find(stop) for stop in self.stops if stop in text]
        if places:
            return self._release(min(places)), True
        return self._release(len(text) - self._overlap(text)), False

    def rest(self) -> list[Piece]:
        """The pieces that were held back and are not part of a stop string."""
        return self._release(sum(len(p.text) for p in self.held))

    def _overlap(self, text: str) -> int:
        """Length of the longest end of `text` with which a stop string begins."""
        longest = max((len(stop) - 1 for stop in self.stops), default=0)
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self.stops):
                return size
        return 0

    def _release(self, count: int) -> list[Piece]:
        out, rest = [], []
        for piece in self.held:
            head, tail = piece.text[:count], piece.text[count:]
            count -= len(head)
            out += [Piece(head, piece.kind)] if head else []
            rest += [Piece(tail, piece.kind)] if tail else []
        self.held = rest
        return out
