"""Text as it is made: half characters wait, stop strings are caught wherever they are cut."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from draftproof.engine.detokenize import Decoder, Piece, Stopper
from tests.support import tiny


@given(st.text(max_size=30))
def test_decoding_token_by_token_gives_the_whole(text):
    ids = tiny.tokenizer()(text).input_ids
    decoder = Decoder(tiny.tokenizer())
    pieces = [decoder.feed(token) for token in ids]
    assert "".join(pieces) + decoder.rest() == tiny.tokenizer().decode(ids)
    assert not any("�" in piece for piece in pieces) or "�" in text


@cache
def llamas() -> Any:
    """A tokenizer of Llama's kind: a word brings its space, which is taken away where a text begins."""
    words = ["<unk>", "</s>", "▁sea", "▁see", "s", *(f"<0x{byte:02X}>" for byte in range(256))]
    core = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True))
    cut = decoders.Strip(" ", 1, 0)
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), cut])
    core.add_special_tokens([AddedToken("</s>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>")


@given(st.lists(st.sampled_from([[1], [2], [3], [4], [5 + byte for byte in "海".encode()]]), max_size=12))
@example([[2], [1], [3]])
def test_no_space_is_lost_after_a_special_token(parts):
    ids, decoder = [token for part in parts for token in part], Decoder(llamas())
    shown = "".join(decoder.feed(token) for token in ids) + decoder.rest()
    assert shown == llamas().decode(ids, skip_special_tokens=True)


def test_special_tokens_take_no_room():
    decoder = Decoder(llamas())
    assert "".join(decoder.feed(token) for token in (2, *[1] * 500, 3)) == llamas().decode([2, 3])
    assert len(decoder.window) < 5


def test_half_a_character_is_shown_only_at_the_end():
    ids = tiny.tokenizer()("é").input_ids
    decoder = Decoder(tiny.tokenizer())
    assert decoder.feed(ids[0]) == ""
    assert decoder.rest() == "�"


def test_bare_token_ids_are_shown_as_numbers():
    decoder = Decoder(None)
    assert "".join(decoder.feed(token) for token in (3, 14, 15)) == "3 14 15"


@given(st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.integers(1, 4))
def test_the_first_stop_string_ends_the_text_however_it_is_cut(text, stops, size):
    stopper, shown, stopped = Stopper(stops), "", False
    for start in range(0, len(text), size):
        pieces, stopped = stopper.feed(Piece(text[start : start + size], "plain"))
        shown += "".join(piece.text for piece in pieces)
        if stopped:
            break
        assert not any(stop in shown for stop in stops)
    if not stopped:
        shown += "".join(piece.text for piece in stopper.rest())
    # What a reader sees is the text before the stop string that was completed first.
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if ends:
        seen = text[: -(-min(ends) // size) * size]
        assert shown == seen[: min(seen.find(stop) for stop in stops if stop in seen)]
    else:
        assert shown == text


def test_pieces_keep_their_kind_when_they_are_held_back():
    stopper = Stopper(["abc"])
    assert stopper.feed(Piece("xa", "accepted")) == ([Piece("x", "accepted")], False)
    assert stopper.feed(Piece("bd", "corrected")) == ([Piece("a", "accepted"), Piece("bd", "corrected")], False)
