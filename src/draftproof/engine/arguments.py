"""Check a caller's arguments: the settings of a text, and its prompt as token ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, TypedDict

from draftproof.draft import Tree
from draftproof.engine.tuning import Auto
from draftproof.errors import ContextError, DraftproofError, nearest
from draftproof.models.base import Model
from draftproof.sampling import Sampling, check_tokens

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]  # text, token ids, or chat messages
Named = str | Path | Model  # a model, or its name or path
Drafts = Named | Sequence[Named] | None


class Settings(TypedDict, total=False):
    """The settings of `generate` and `stream`; `generate` documents them."""

    draft: Drafts
    verify: str
    lossy: str | None
    tree: Tree | Auto | str | None
    draw: str | None
    sampling: Sampling | None
    draft_sampling: Sampling | None
    max_new_tokens: int
    stop: str | Sequence[str] | None
    seed: int | None
    chat: bool
    compile: bool


def check_names(settings: Mapping[str, Any]) -> None:
    """Refuse unknown settings."""
    for name in settings.keys() - Settings.__annotations__.keys():
        if name in Sampling.__annotations__:
            raise DraftproofError(f"{name} is a sampling control: pass sampling=Sampling({name}=...)")
        near = nearest(name, Settings.__annotations__, cutoff=0.6)
        hint = f"did you mean {near!r}?" if near else f"choose from {', '.join(Settings.__annotations__)}"
        raise DraftproofError(f"unknown setting {name!r}: {hint}")


def check_text(stop: Any, *samplings: Any) -> tuple[str, ...]:
    """Return the stop strings as a tuple, or raise if they or the samplings have a wrong type."""
    for sampling in samplings:
        if not isinstance(sampling, Sampling | None):
            raise DraftproofError(f"sampling must be a Sampling, as in Sampling(temperature=0.8), not {sampling!r}")
    stop = () if stop is None else stop
    stops = tuple(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else (stop,)
    strange = [text for text in stops if not isinstance(text, str) or not text]
    if strange:
        raise DraftproofError(f"stop must be text, not {strange[0]!r}: give strings of at least one character")
    return stops


def suited(sampling: Sampling, target: Model) -> Sampling:
    """The settings with the model's own end tokens, unless they name others or none.

    Token ids outside the vocabulary are refused here, before the request shares a batch with others.
    """
    check_tokens(sampling, target.vocabulary)
    return dataclasses.replace(sampling, end_tokens=target.end_tokens) if sampling.end_tokens is None else sampling


def encode(target: Model, prompt: Prompt, chat: bool = True) -> tuple[int, ...]:
    """Token ids of a prompt, checked against vocabulary and context."""
    ids = list(_ids(target, prompt, chat))
    if not ids:
        raise DraftproofError("the prompt has no tokens: give at least one word")
    strange = [token for token in ids if not 0 <= token < target.vocabulary]
    if strange:
        raise DraftproofError(f"token id {strange[0]} is outside the vocabulary (0 to {target.vocabulary - 1})")
    if target.context is not None and len(ids) >= target.context:
        raise ContextError(target.name, len(ids), target.context)
    return tuple(ids)


def _ids(target: Model, prompt: Any, chat: bool) -> Sequence[int]:
    tokenizer = target.tokenizer
    if not isinstance(prompt, str | Sequence) or isinstance(prompt, bytes | bytearray | memoryview):
        kind, how = type(prompt).__name__, ", as by .tolist()" if hasattr(prompt, "tolist") else ""
        raise DraftproofError(f"a prompt is text, chat messages or token ids, not {kind}: convert it{how}")
    if len(prompt) == 0:
        raise DraftproofError("the prompt is empty: give at least one word or token")
    if isinstance(prompt, str):
        if not prompt.isascii() and any("\ud800" <= letter <= "\udfff" for letter in prompt):
            raise DraftproofError("the prompt contains bytes that are not text: give it in UTF-8")
    elif all(isinstance(token, Integral) for token in prompt):
        return [int(token) for token in prompt]
    elif not all(isinstance(part, Mapping) and {"role", "content"} <= part.keys() for part in prompt):
        raise DraftproofError(
            "a prompt in parts is token ids, or messages with role and content: pass one text at a time"
        )
    if tokenizer is None:
        raise DraftproofError(f"model {target.name!r} has no tokenizer: give the prompt as token ids")
    if isinstance(prompt, str) and not (chat and tokenizer.chat_template):
        encoded = tokenizer(prompt)
    else:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        try:
            encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        except Exception as error:  # a template is a program and may raise anything
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise DraftproofError(
                f"the chat template of {target.name!r} does not take these messages ({reason[0]}): check its roles"
            ) from error
    ids: Sequence[int] = encoded["input_ids"]
    return ids
