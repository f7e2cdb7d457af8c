"""The bytes of each token, by which tokens of different tokenizers are compared."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from draftproof.errors import DraftproofError
from draftproof.models.base import Model

NODES = 40  # of a step, except with the largest trees


class TokenBytes(NamedTuple):
    """The bytes of a tokenizer's ordinary tokens, and the names of its special ones."""

    plain: dict[int, bytes]  # ordinary tokens; one may be part of a character
    special: dict[int, str]  # names of the others

    @staticmethod
    def of(model: Model) -> TokenBytes:
        """Read them from a byte-level or SentencePiece tokenizer, by the kind of its decoder."""
        backend: Any = getattr(model.tokenizer, "backend_tokenizer", None)
        state: dict[str, Any] = {"decoder": None} if backend is None else json.loads(backend.to_str())
        decoder = json.dumps(state["decoder"], ensure_ascii=False)
        if "ByteLevel" not in decoder and "▁" not in decoder:
            raise DraftproofError(
                f"the tokenizer of {model.name!r} is neither byte-level nor SentencePiece: "
                "choose a model whose tokenizer is, or --draft ngram"
            )
        spell = _letters if "ByteLevel" in decoder else _marks
        added = {entry["id"]: entry for entry in state["added_tokens"]}
        special = {i: entry["content"] for i, entry in added.items() if entry["special"]}
        plain = {i: spell(token) for token, i in backend.get_vocab(with_added_tokens=False).items() if i not in added}
        plain |= {i: entry["content"].encode() for i, entry in added.items() if i not in special}
        return TokenBytes({i: spelled for i, spelled in plain.items() if spelled}, special)


class Reader(NamedTuple):
    """Converts text from one model's tokens to another's."""

    spelled: dict[int, bytes]  # bytes of the writer's tokens; special tokens unknown to the reader are left out
    tokenizer: Any  # the reader's
    lead: tuple[int, ...]  # tokens that the reader puts before a text

    @staticmethod
    def of(writer: Model, reader: Model) -> Reader:
        written, read_by = TokenBytes.of(writer), TokenBytes.of(reader)
        names = set(read_by.special.values())
        shared = {i: name.encode() for i, name in written.special.items() if name in names}
        lead = tuple(reader.tokenizer("")["input_ids"])
        return Reader(written.plain | shared, reader.tokenizer, lead)

    def spell(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self.spelled.get(int(token), b"") for token in tokens)

    def read(self, text: bytes) -> tuple[list[int], bool]:
        """Tokens of the text, at least one, and whether they cover it: an incomplete character is left out."""
        words = text.decode(errors="ignore")
        ids = [*self.lead, *self.tokenizer.encode(words, add_special_tokens=False)]
        return ids or [0], whole(text)


def whole(text: bytes) -> bool:
    """Whether a text ends with a complete UTF-8 character."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
    decoder.decode(text[-4:])
    return decoder.getstate()[0] == b""


def room(draft: Model, capacity: int) -> int:
    """Capacity of a drafter's session for texts of `capacity` target tokens: it may need more of its own tokens."""
    return min(2 * capacity, draft.context or 2 * capacity)


def outgrown(view: Sequence[int], nodes: int, capacity: int) -> bool:
    """Whether a text must be shortened before a step of `nodes` nodes.

    The answer must not depend on other rows, which may need more nodes, so room for them is always reserved.
    """
    return len(view) + max(nodes, min(NODES, capacity // 2)) > capacity


def shorten(text: bytes, view: list[int], reader: Reader | None, capacity: int) -> tuple[bytes, list[int]]:
    """The end of a text, in at most half of the capacity."""
    if reader is None:
        return text, view[-max(capacity // 2, 1) :]
    while len(view) > max(capacity // 2, 1) and len(text) > 1:
        text = text[len(text) // 2 :]
        view, _ = reader.read(text)
    return text, view


def common(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common prefix of two texts."""
    differing = (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    return next(differing, min(len(first), len(second)))


def _letters(token: str) -> bytes:
    """Bytes of a GPT-2 token, in which every byte is a printable letter; empty for an unknown letter."""
    return bytes(LETTERS[letter] for letter in token) if all(letter in LETTERS for letter in token) else b""


def _marks(token: str) -> bytes:
    """Bytes of a SentencePiece token, in which ▁ is a space and <0x0A> a byte."""
    if len(token) == 6 and token.startswith("<0x"):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()


def _byte_letters() -> dict[str, int]:
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + i): byte for i, byte in enumerate(others)}


LETTERS = _byte_letters()
