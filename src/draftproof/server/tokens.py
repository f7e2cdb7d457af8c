"""Single tokens as text and as bytes, which logprobs report."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # a byte in vocabularies of the SentencePiece kind
UNKNOWN = "\ufffd"  # what stands for part of a character


class TokenTexts:
    """What each token of a vocabulary is in the middle of a text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._before = list(tokenizer.encode("a", add_special_tokens=False))[-1:]  # keeps a leading space
        self._start = len(self._decode(self._before))
        self.text = lru_cache(maxsize=2**16)(self._text)

    def utf8(self, token: int) -> list[int]:
        """The token's bytes in UTF-8; several tokens may share a character."""
        text = self.text(token)
        return list(text.encode("utf-8", "replace") if UNKNOWN not in text else self._raw(token) or text.encode())

    def _text(self, token: int) -> str:
        return self._decode([*self._before, token])[self._start :]

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _raw(self, token: int) -> bytes | None:
        """The bytes of a token that is no text by itself, as its name in the vocabulary spells them."""
        name = str(self._tokenizer.convert_ids_to_tokens(token))
        if byte := BYTE.fullmatch(name):
            return bytes([int(byte[1], 16)])
        letters = _letters()
        return bytes(letters[letter] for letter in name) if all(letter in letters for letter in name) else None


@lru_cache(maxsize=1)
def _letters() -> dict[str, int]:
    """The letter that stands for each byte in byte-level vocabularies: itself where it can be printed."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + i): byte for i, byte in enumerate(others)}
