"""The tokenizer of a folder, read by the `tokenizers` library alone, as transformers reads it.

It answers what generating text asks. Whatever else it is asked, such as for tensors or to be saved, transformers' own
tokenizer of the same files answers, loaded then. `open_tokenizer` knows the folders of which transformers would use the
tokenizer.json as it is; transformers reads the others.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from draftproof.models import chat_template
from draftproof.models.files.json_file import read_json

CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")  # that keep the whole of tokenizer.json; others rebuild it
NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
HARMLESS = (  # of tokenizer_config.json: what does not change ids or text
    *("tokenizer_class", "backend", "is_local", "local_files_only", "model_max_length", "model_input_names"),
    *("clean_up_tokenization_spaces", "padding_side", "truncation_side", "chat_template", "added_tokens_decoder"),
    *("add_bos_token", "add_eos_token"),  # transformers leaves the tokenizer.json's own rule
)
LEGACY = ("special_tokens_map.json", "added_tokens.json")  # transformers reads them where there is nothing newer
OTHERS = ("tekken.json", "additional_chat_templates")  # another tokenizer, or several templates
EMPTY: tuple[Any, ...] = (None, {}, [])
TOKENIZER, PACKED = "tokenizer.json", "tokenizer.json.gz"
TEMPLATE = "chat_template.jinja"


class Encoded(dict[str, Any]):
    """Token ids of a text, or of several."""

    @property
    def input_ids(self) -> Any:
        return self["input_ids"]


class FolderTokenizer:
    """A tokenizer.json with the names of its special tokens and a chat template."""

    def __init__(self, backend: Any, names: Mapping[str, str], template: str | None, whole: Callable[[], Any]) -> None:
        """`whole` loads transformers' own tokenizer of the same files."""
        self.backend_tokenizer, self.chat_template = backend, template
        self.special_tokens_map = dict(names)
        self.bos_token, self.eos_token = names.get("bos_token"), names.get("eos_token")
        self._whole = cache(whole)

    def __call__(self, text: Any, add_special_tokens: bool = True, **options: Any) -> Any:
        several = isinstance(text, list | tuple)
        if options or not all(isinstance(one, str) for one in (text if several else [text])):
            return self._complete(text, add_special_tokens=add_special_tokens, **options)
        found = self.backend_tokenizer.encode_batch(
            list(text) if several else [text], add_special_tokens=add_special_tokens
        )
        ids, masks = [one.ids for one in found], [one.attention_mask for one in found]
        return Encoded(input_ids=ids if several else ids[0], attention_mask=masks if several else masks[0])

    def encode(self, text: str, add_special_tokens: bool = True, **options: Any) -> list[int]:
        return self(text, add_special_tokens, **options)["input_ids"]  # type: ignore[no-any-return]

    def decode(self, tokens: Any, skip_special_tokens: bool = False, **options: Any) -> Any:
        ids = [tokens] if isinstance(tokens, Integral) else tokens
        known = options.keys() <= {"clean_up_tokenization_spaces"}  # which transformers does for no BPE tokenizer
        if not known or not (isinstance(ids, list | tuple) and all(isinstance(token, Integral) for token in ids)):
            return self._complete.decode(tokens, skip_special_tokens=skip_special_tokens, **options)
        return self.backend_tokenizer.decode([int(token) for token in ids], skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self,
        conversation: Any,
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool | str = False,
        tokenize: bool = True,
        return_dict: bool = True,
        **options: Any,
    ) -> Any:
        plain = chat_template.is_plain(conversation) and isinstance(self.chat_template, str)
        if options or not plain or continue_final_message not in (True, False):
            return self._complete.apply_chat_template(
                conversation,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tokenize=tokenize,
                return_dict=return_dict,
                **options,
            )
        text = chat_template.render(
            self.chat_template or "",
            conversation,
            self.special_tokens_map,
            add_generation_prompt,
            bool(continue_final_message),
        )
        if not tokenize:
            return text
        encoded = self(text, add_special_tokens=False)
        return encoded if return_dict else encoded["input_ids"]

    def get_vocab(self) -> dict[str, int]:
        return self.backend_tokenizer.get_vocab(with_added_tokens=True)  # type: ignore[no-any-return]

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        return self.backend_tokenizer.get_added_tokens_decoder()  # type: ignore[no-any-return]

    @property
    def bos_token_id(self) -> int | None:
        return None if self.bos_token is None else self.backend_tokenizer.token_to_id(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        return None if self.eos_token is None else self.backend_tokenizer.token_to_id(self.eos_token)

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=True)  # type: ignore[no-any-return]

    @property
    def _complete(self) -> Any:
        """transformers' own tokenizer of the same files."""
        complete = self._whole()
        complete.chat_template = self.chat_template
        return complete

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._complete, name)


def open_tokenizer(folder: Path, whole: Callable[[], Any]) -> FolderTokenizer | None:
    """The tokenizer of a folder, or None where transformers would make anything else of its files."""
    settings = {
        name: value for name, value in read_json(folder / "tokenizer_config.json").items() if value not in EMPTY
    }
    listed = settings.get("added_tokens_decoder", {})
    unknown = settings.keys() - {*NAMES, *HARMLESS}
    kept = (folder / PACKED).is_file() or settings.get("tokenizer_class") in CLASSES
    beside = [name for name in (*OTHERS, *(() if listed else LEGACY)) if (folder / name).exists()]
    template = folder / TEMPLATE
    words = template.read_text(encoding="utf-8") if template.exists() else settings.get("chat_template")
    if unknown or beside or not kept or not isinstance(words, str | None):
        return None
    names = {name: _content(settings[name]) for name in NAMES if name in settings}
    backend = _backend(folder)
    if backend is None or not _has_all(backend, [*names.values()], listed):
        return None
    return FolderTokenizer(backend, names, words, whole)


def _backend(folder: Path) -> Any:
    """The tokenizer.json, or None where it cannot be read or is of another kind."""
    try:
        if (folder / PACKED).is_file():
            backend = Tokenizer.from_str(gzip.decompress((folder / PACKED).read_bytes()).decode("utf-8"))
        else:
            backend = Tokenizer.from_file(str(folder / TOKENIZER))
    except Exception:  # the library raises bare Exceptions
        return None
    backend.no_padding()
    backend.no_truncation()
    return backend if type(backend.model).__name__ == "BPE" else None


def _has_all(backend: Any, names: Sequence[str], listed: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the tokenizer has all special tokens as such already: transformers would add those that it has not."""
    known = backend.get_added_tokens_decoder()
    plain = {token.content for token in known.values() if token.special and not _reaches_out(token)}
    same = all(int(i) in known and dict(token) == known[int(i)].__getstate__() for i, token in listed.items())
    return same and plain.issuperset(names)


def _reaches_out(token: Any) -> bool:
    """Whether what is beside a token, or a normaliser, decides if it is one."""
    return bool(token.lstrip or token.rstrip or token.single_word or token.normalized)


def _content(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)
