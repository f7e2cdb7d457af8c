"""Tokens of different tokenizers compared by what they spell: bytes, whatever a tokenizer writes them as."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from draftproof.errors import DraftproofError
from draftproof.models.base import Model

NODES = 40  # of a step, at most, but for the largest trees


class Spelling(NamedTuple):
    """What the tokens of a tokenizer stand for."""

    plain: dict[int, bytes]  # ordinary tokens; one may be part of a character
    special: dict[int, str]  # names of the others

    @staticmethod
    def of(model: Model) -> Spelling:
        """Through what the tokenizer's own decoder does to single tokens: bytes as letters, or marks for spaces."""
        backend: Any = getattr(model.tokenizer, "backend_tokenizer", None)
        state: dict[str, Any] = {"decoder": None} if backend is None else json.loads(backend.to_str())
        decoder = json.dumps(state["decoder"], ensure_ascii=False)
        if "ByteLevel" not in decoder and "▁" not in decoder:
            raise DraftproofError(
                f"the tokenizer of {model.name!r} is of a kind whose tokens are not understood one by one: "
                "choose a model with a byte-level or SentencePiece tokenizer, or --draft ngram"
            )
        spell = _letters if "ByteLevel" in decoder else _marks
        added = {entry["id"]: entry for entry in state["added_tokens"]}
        special = {i: entry["content"] for i, entry in added.items() if entry["special"]}
        plain = {i: spell(token) for token, i in backend.get_vocab(with_added_tokens=False).items() if i not in added}
        plain |= {i: entry["content"].encode() for i, entry in added.items() if i not in special}
        return Spelling({i: said for i, said in plain.items() if said}, special)


class Reader(NamedTuple):
    """Reads a text of one model's tokens in another's."""

    spelled: dict[int, bytes]  # of the tokens that are read; those that mean nothing to the other are left out
    tokenizer: Any  # the other's
    lead: tuple[int, ...]  # what the other wants before a text

    @staticmethod
    def of(writer: Model, reader: Model) -> Reader:
        mine, other = Spelling.of(writer), Spelling.of(reader)
        names = set(other.special.values())
        known = {i: name.encode() for i, name in mine.special.items() if name in names}
        lead = tuple(reader.tokenizer("")["input_ids"])
        return Reader(mine.plain | known, reader.tokenizer, lead)

    def spell(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self.spelled.get(int(token), b"") for token in tokens)

    def read(self, text: bytes) -> tuple[list[int], bool]:
        """Tokens of the text, at least one, and whether they are all of it: half a character cannot be read yet."""
        words = text.decode(errors="ignore")
        ids = [*self.lead, *self.tokenizer.encode(words, add_special_tokens=False)]
        return ids or [0], whole(text)


def whole(text: bytes) -> bool:
    """Whether a text ends with a whole character."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
    decoder.decode(text[-4:])
    return decoder.getstate()[0] == b""


def room(draft: Model, capacity: int) -> int:
    """Tokens that a drafter's session holds for texts of `capacity` tokens of the target's: it may need more of its."""
    return min(2 * capacity, draft.context or 2 * capacity)


def outgrown(view: Sequence[int], nodes: int, capacity: int) -> bool:
    """Whether a text must be shortened before a step of so many nodes.

    Where it is shortened must not depend on the texts beside it, which may want more nodes: they have room at any time.
    """
    return len(view) + max(nodes, min(NODES, capacity // 2)) > capacity


def shorten(text: bytes, view: list[int], reader: Reader | None, capacity: int) -> tuple[bytes, list[int]]:
    """The later part of a text, in at most half of the tokens that there is room for."""
    if reader is None:
        return text, view[-max(capacity // 2, 1) :]
    while len(view) > max(capacity // 2, 1) and len(text) > 1:
        text = text[len(text) // 2 :]
        view, _ = reader.read(text)
    return text, view


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the beginning that two texts have in common."""
    differing = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))


def _letters(token: str) -> bytes:
    """GPT-2's way: every byte has a letter that can be printed; an unknown letter spells nothing."""
    return bytes(LETTERS[letter] for letter in token) if all(letter in LETTERS for letter in token) else b""


def _marks(token: str) -> bytes:
    """SentencePiece's way: ▁ is a space, <0x0A> a byte."""
    if len(token) == 6 and token.startswith("<0x"):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()


def _byte_letters() -> dict[str, int]:
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + i): byte for i, byte in enumerate(others)}


LETTERS = _byte_letters()
