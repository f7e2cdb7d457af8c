"""Check a caller's arguments: the settings of a text, and its prompt as token ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, TypedDict

from draftproof.draft import Tree
from draftproof.engine.messages import Message, template_ids
from draftproof.engine.tuning import Auto
from draftproof.errors import ContextError, DraftproofError, nearest, whole
from draftproof.models.base import Model
from draftproof.sampling import Sampling, check_tokens

Prompt = str | Iterable[int] | Sequence[Message]  # text, token ids in any container, or chat messages
Prompts = list[str] | tuple[str, ...] | Sequence[Sequence[int]] | Sequence[Sequence[Message]]
Named = str | Path | Model  # a model, or its name or path
Drafts = Named | Sequence[Named] | None


class TextSettings(TypedDict, total=False):
    """The settings of one text, in `generate` and in an engine; `generate` documents them."""

    sampling: Sampling | None
    draft_sampling: Sampling | None
    max_new_tokens: int
    stop: str | Sequence[str] | None
    seed: int | None
    logprobs: int | None
    chat: bool
    continue_final_message: bool


class RequestSettings(TextSettings, total=False):
    """The settings of a request to an engine; `Engine.add_samples` documents those that a text does not have."""

    draft: Named | None
    verify: str | None
    tree: Tree | str | None
    prediction: str | Sequence[int] | None
    speculate: bool


class EngineSettings(TypedDict, total=False):
    """The settings of an `Engine`, which documents them."""

    draft: Drafts
    verify: str
    lossy: str | None
    tree: Tree | str | None
    rows: int
    length: int
    kept: int
    compile: bool


class Settings(TextSettings, total=False):
    """The settings of `generate` and `stream`: those of a text, and those that an engine has for all its texts."""

    draft: Drafts
    verify: str
    lossy: str | None
    tree: Tree | Auto | str | None
    draw: str | None
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


def check_logprobs(logprobs: Any) -> int | None:
    """How many of the likeliest tokens to report, checked; None where logprobs are off."""
    return None if logprobs is None else whole("logprobs", logprobs, least=0)


def suited(sampling: Sampling, target: Model) -> Sampling:
    """The settings with the model's own end tokens, unless they name others or none.

    Token ids outside the vocabulary are refused here, before the request shares a batch with others.
    """
    check_tokens(sampling, target.vocabulary)
    return dataclasses.replace(sampling, end_tokens=target.end_tokens) if sampling.end_tokens is None else sampling


def encode(target: Model, prompt: Prompt, chat: bool = True, continue_final_message: bool = True) -> tuple[int, ...]:
    """Token ids of a prompt, checked against vocabulary and context."""
    ids = _inside(target, _ids(target, as_lists(prompt), chat, continue_final_message))
    if not ids:
        raise DraftproofError("the prompt has no tokens: give at least one word")
    if target.context is not None and len(ids) >= target.context:
        raise ContextError(target.name, len(ids), target.context)
    return tuple(ids)


def encode_prediction(target: Model, prediction: Any) -> tuple[int, ...]:
    """Token ids of the text that a caller predicts, as it would stand in the middle of an answer."""
    if not isinstance(prediction, str):
        return tuple(_inside(target, _ids(target, as_lists(prediction), False, False)))
    if target.tokenizer is None:
        raise DraftproofError(f"{target.name!r} has no tokenizer: give the prediction as token ids")
    return tuple(target.tokenizer.encode(prediction, add_special_tokens=False))


def _inside(target: Model, ids: Sequence[int]) -> Sequence[int]:
    """The ids, if they are all in the vocabulary."""
    strange = [token for token in ids if not 0 <= token < target.vocabulary]
    if strange:
        raise DraftproofError(f"token id {strange[0]} is outside the vocabulary (0 to {target.vocabulary - 1})")
    return ids


def encode_each(target: Model, prompts: Sequence[Any], *how: bool) -> list[tuple[int, ...]]:
    """Token ids of each prompt; if there are several, an error names the prompt."""
    encoded = []
    for number, prompt in enumerate(prompts, start=1):
        try:
            encoded.append(encode(target, prompt, *how))
        except DraftproofError as error:
            if len(prompts) == 1:
                raise
            raise DraftproofError(f"prompt {number} of {len(prompts)}: {error}") from error
    return encoded


def is_several(prompt: Any) -> bool:
    """Whether this is a list of prompts: of strings, of lists of token ids, or of conversations. See `as_lists`."""
    return isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], Integral | Mapping)


def one_prompt(prompt: Any, remedy: str = "use generate for a list of prompts") -> Any:
    """The prompt, which must not be a list of several."""
    prompt = as_lists(prompt)
    if is_several(prompt):
        raise DraftproofError(f"there is one text for each call here, and these are {len(prompt)} prompts: {remedy}")
    return prompt


def as_lists(prompt: Any) -> str | list[Any]:
    """A prompt, or several, as a string or as lists of ids, messages or prompts, whatever they came in."""
    if isinstance(prompt, str):
        return prompt
    if hasattr(prompt, "tolist"):  # an array or a tensor
        return _array_ids(prompt)
    if isinstance(prompt, bytes | bytearray | memoryview | Mapping | set | frozenset) or not isinstance(
        prompt, Iterable
    ):
        kind = type(prompt).__name__
        hint = "put a message into a list" if isinstance(prompt, Mapping) and "role" in prompt else "convert it"
        raise DraftproofError(f"a prompt is text, chat messages or token ids, not {kind}: {hint}")
    return [part if isinstance(part, str | Integral | Mapping) else as_lists(part) for part in map(_plain, prompt)]


def _plain(part: Any) -> Any:
    """A number in an array or tensor of its own as a number, and anything else as it is."""
    return part.tolist() if hasattr(part, "tolist") and not part.shape else part


def _array_ids(array: Any) -> list[int]:
    """The ids of an array of one row."""
    ids, shape = array.tolist(), tuple(array.shape)
    if len(shape) == 2 and shape[0] == 1:
        ids, shape = ids[0], shape[1:]
    if len(shape) != 1:
        raise DraftproofError(
            f"a prompt in an array is one row of token ids, not of shape {shape}: give a list of rows"
        )
    if not all(isinstance(token, int) for token in ids):
        raise DraftproofError(f"token ids are whole numbers, not {array.dtype}: convert the array")
    return list(ids)


def _ids(target: Model, prompt: str | list[Any], chat: bool, continue_final_message: bool) -> Sequence[int]:
    tokenizer = target.tokenizer
    if not prompt:
        raise DraftproofError("the prompt is empty: give at least one word or token")
    if isinstance(prompt, str):
        if not prompt.isascii() and any("\ud800" <= letter <= "\udfff" for letter in prompt):
            raise DraftproofError("the prompt contains bytes that are not text: give it in UTF-8")
    elif all(isinstance(token, Integral) for token in prompt):
        return [int(token) for token in prompt]
    elif not all(isinstance(part, Mapping) for part in prompt):
        kinds = sorted({type(part).__name__ for part in prompt})
        what = " and ".join(kinds) if len(kinds) > 1 else f"several of {kinds[0]}"
        raise DraftproofError(f"one prompt is a text, or a list of token ids or of chat messages, not {what}")
    if tokenizer is None:
        raise DraftproofError(f"model {target.name!r} has no tokenizer: give the prompt as token ids")
    if isinstance(prompt, str) and not (chat and tokenizer.chat_template):
        ids: Sequence[int] = tokenizer(prompt)["input_ids"]
        return ids
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return template_ids(tokenizer, target.name, messages, continue_final_message)
