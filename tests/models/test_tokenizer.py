"""Tokenizers read without transformers are the ones that transformers reads."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import draftproof as dp
from draftproof.models.files import bundled
from draftproof.models.tokenizer import FolderTokenizer, open_tokenizer
from tests.support import tiny

TEXTS = [
    "",
    " ",
    "\n\n\t ",
    "Why is the sky blue?",
    " two  spaces , and a stop .",
    "don't we'll I'M",
    "é e\u0301 ǆ ﬁ ß İ",
    "日本語のテキスト 한국어 ไทย עברית العربية",
    "🙂👩‍👩‍👧‍👦🇫🇷 zero\u200bwidth \u202eright\ufeff",
    "12345 1,000.50 ½ ² Ⅷ",
    "<|im_start|>user\nhi<|im_end|> <|endoftext|>x<|im_start|>",
    "<|im_sta" + "rt|>  <|im_end|>  ",
    "\x00\x07\x1b[0m \r\n",
    "x" * 300,
    "�\ud7ff\ue000\U0010ffff",
]
CHATS = [
    [{"role": "user", "content": "Why?"}],
    [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "<|im_end|>é 🙂\n"}],
    [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well, "}],
]


def forbidden() -> Any:
    raise AssertionError("transformers was asked")


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    """The packaged tokenizer, which is that of the default model, by both roads."""
    ours = open_tokenizer(bundled.folder("tiny"), forbidden)
    assert ours is not None
    return ours, bundled.tokenizer(bundled.folder("tiny"))


def test_texts_are_encoded_and_decoded_as_by_transformers(pair):
    ours, theirs = pair
    for text in TEXTS:
        for special in (True, False):
            ids = theirs(text, add_special_tokens=special)["input_ids"]
            assert ours(text, add_special_tokens=special)["input_ids"] == ids
            assert ours.encode(text, add_special_tokens=special) == ids
        for skip in (True, False):
            for clean in (True, False, None):
                how = {"skip_special_tokens": skip, "clean_up_tokenization_spaces": clean}
                assert ours.decode(ids, **how) == theirs.decode(ids, **how)
                assert [ours.decode(i, **how) for i in ids] == [theirs.decode(i, **how) for i in ids]
    assert dict(ours(TEXTS, add_special_tokens=False)) == dict(theirs(TEXTS, add_special_tokens=False))
    assert ours("a").input_ids == theirs("a").input_ids
    assert ours.decode(np.array([4898, 314]).tolist()) == ours.decode([np.int64(4898), np.int64(314)]) == "Why is"


def test_chats_are_encoded_as_by_transformers(pair):
    for chat in CHATS:
        for how in ({}, {"add_generation_prompt": True}, {"continue_final_message": True}):
            for shape in ({}, {"tokenize": False}, {"return_dict": False}):
                made, wanted = (one.apply_chat_template(chat, **how, **shape) for one in pair)
                assert (made if shape else dict(made)) == (wanted if shape else dict(wanted))


def test_what_it_knows_of_itself_is_what_transformers_knows(pair):
    ours, theirs = pair
    for name in ("bos_token", "eos_token", "bos_token_id", "eos_token_id", "special_tokens_map", "chat_template"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.get_vocab() == theirs.get_vocab()
    assert len(ours) == len(theirs)
    assert ours.added_tokens_decoder == theirs.added_tokens_decoder


def test_anything_else_is_answered_by_transformers(tmp_path):
    tiny.save(tmp_path)
    model = dp.load(tmp_path)
    ours, theirs = model.tokenizer, AutoTokenizer.from_pretrained(tmp_path)
    assert type(ours) is FolderTokenizer
    assert ours("abc", return_tensors="pt")["input_ids"].tolist() == [theirs("abc")["input_ids"]]
    assert ours.pad_token_id == theirs.pad_token_id
    assert ours.batch_decode([[65, 66], [67]]) == theirs.batch_decode([[65, 66], [67]])
    assert ours.decode(np.array([65, 66])) == theirs.decode([65, 66])
    ours.save_pretrained(tmp_path / "again")
    assert AutoTokenizer.from_pretrained(tmp_path / "again").get_vocab() == theirs.get_vocab()
    with pytest.raises(AttributeError):
        ours.no_such_thing  # noqa: B018
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    other = copy.copy(ours)
    other.chat_template = "{% for m in messages %}{{ m.content[0].text }}{% endfor %}"
    assert other.apply_chat_template(parts, tokenize=False) == "a"
    assert ours.chat_template is None


def test_rules_of_the_file_are_kept(tmp_path):
    """A file that puts a token before every text, cuts long ones and fills short ones: transformers keeps the first."""
    core = Tokenizer.from_str(tiny.tokenizer().backend_tokenizer.to_str())
    core.post_processor = processors.TemplateProcessing(single="<end> $A", special_tokens=[("<end>", 256)])
    PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>").save_pretrained(tmp_path)
    core.enable_truncation(3)
    core.enable_padding(length=9)
    core.save(str(tmp_path / "tokenizer.json"))
    for more in ({}, {"add_bos_token": False, "add_eos_token": True, "extra_special_tokens": {}}):
        changed(tmp_path, **more)
        ours, theirs = open_tokenizer(tmp_path, forbidden), PreTrainedTokenizerFast.from_pretrained(tmp_path)
        assert ours is not None
        assert ours("abcdef")["input_ids"] == theirs("abcdef")["input_ids"]
        assert len(ours("abcdef")["input_ids"]) == 7
        assert ours.encode("a", add_special_tokens=False) == theirs.encode("a", add_special_tokens=False)


def changed(folder: Path, **values: Any) -> Path:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    return folder


UNKNOWN: dict[str, dict[str, Any]] = {
    "a class that rebuilds it": {"tokenizer_class": "Qwen2Tokenizer"},
    "no class": {"tokenizer_class": None},
    "code of its own": {"auto_map": {"AutoTokenizer": ["code.Mine", None]}},
    "a setting": {"add_prefix_space": True},
    "more special tokens": {"extra_special_tokens": ["<more>"]},
    "a token that it lacks": {"bos_token": "<begin>"},
    "a token that is none": {"bos_token": "a"},
    "a token of another kind": {"added_tokens_decoder": {"256": {"content": "<end>", "lstrip": True, "special": True}}},
    "several templates": {"chat_template": [{"name": "default", "template": "a"}]},
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_is_not_understood_is_left_to_transformers(tmp_path, what):
    tiny.tokenizer().save_pretrained(tmp_path)
    assert open_tokenizer(tmp_path, forbidden) is not None
    assert open_tokenizer(changed(tmp_path, **UNKNOWN[what]), forbidden) is None


@pytest.mark.parametrize("name", ["special_tokens_map.json", "added_tokens.json", "tekken.json"])
def test_files_that_change_it_are_left_to_transformers(tmp_path, name):
    tiny.tokenizer().save_pretrained(tmp_path)
    (tmp_path / name).write_text("{}")
    known = {str(i): token.__getstate__() for i, token in tiny.tokenizer().added_tokens_decoder.items()}
    assert open_tokenizer(tmp_path, forbidden) is None
    listed = open_tokenizer(changed(tmp_path, added_tokens_decoder=known), forbidden)  # then transformers ignores them
    assert (listed is None) == (name == "tekken.json")


def test_other_models_than_bpe_are_left_to_transformers(tmp_path):
    core = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    PreTrainedTokenizerFast(tokenizer_object=core).save_pretrained(tmp_path)
    assert open_tokenizer(tmp_path, forbidden) is None
    (tmp_path / "tokenizer.json").write_text("{}")
    assert open_tokenizer(tmp_path, forbidden) is None
