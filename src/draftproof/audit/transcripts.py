"""Transcripts of an engine: prompt, output and settings, one JSON object per line.

    {"prompt_token_ids": [1, 2], "output_token_ids": [7, 8, 9], "sampling": {"temperature": 0.7, "top_p": 0.9}}

Settings have the names of Sampling, or those of vLLM and llama.cpp where their meaning is the same. Instead of ids,
`prompt` may be text (tokenised as it is) or chat messages. Optional: `accepted`, for each output token whether it was
an accepted guess; `finish`, "end" where the model ended the text; `retokenised`, true where the ids were obtained by
tokenising the text again; `engine`, its name and version, the same with and without speculation. Anything that cannot
be audited is an error that names its line, never a verdict.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from draftproof.errors import DraftproofError, nearest
from draftproof.models.base import Model
from draftproof.sampling import Sampling

# Settings of length, seed and response format: no token's law depends on them.
_WITHOUT_EFFECT = {
    *("max_tokens", "max_new_tokens", "max_completion_tokens", "n_predict", "n", "seed", "stop", "stop_token_ids"),
    *("stream", "logprobs", "prompt_logprobs", "n_probs", "return_token_ids", "return_tokens", "cache_prompt"),
    *("detokenize", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output"),
}
_ALSO_CALLED = {"temp": "temperature", "min_tokens": "min_new_tokens", "typical": "typical_p"}
# Settings of vLLM, llama.cpp and transformers whose law is not implemented, with the value that turns them off.
_OFF: dict[str, Any] = {
    **dict.fromkeys(("repeat_penalty", "length_penalty", "tfs_z", "guidance_scale", "num_beams", "best_of"), 1),
    **dict.fromkeys(("mirostat", "xtc_probability", "dry_multiplier", "dynatemp_range", "no_repeat_ngram_size"), 0),
    **dict.fromkeys(("ignore_eos", "use_beam_search"), False),
    "do_sample": True,
}
_FINISHES = ("end", "length", "stop", "context", "cancelled", "failed")
_SETTINGS = {field.name for field in dataclasses.fields(Sampling)} - {"processors"}
_KEYS = {"prompt", "prompt_token_ids", "output_token_ids", "sampling", "accepted", "finish", "retokenised", "engine"}


class InputError(DraftproofError):
    """The transcripts cannot be audited; this is no verdict about the engine."""


class Transcript(NamedTuple):
    """One prompt and what was sampled after it."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    sampling: Sampling
    accepted: tuple[bool, ...] | None = None  # which output tokens were accepted guesses, where that is known
    retokenised: bool = False  # the ids were made from text, and may not be those that were sampled
    line: int = 0  # in the file, from 1
    engine: str = ""  # name and version, where they are known


def read(path: str | Path, target: Model) -> Iterator[Transcript]:
    """Read the transcripts of a file one at a time, checked against the model they are audited with."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield parse(line, number, target)
    except OSError as error:
        raise InputError(f"transcripts cannot be read from {path} ({error.strerror}): check the path") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: transcripts are one JSON object per line") from error


def parse(text: str, line: int, target: Model) -> Transcript:
    """Parse one line into a transcript; errors name the line."""
    try:
        return checked(_parse(json.loads(text), line, target), target)
    except json.JSONDecodeError as error:
        cut = "cut off in the middle" if error.pos >= len(text.rstrip()) - 1 else f"not JSON ({error})"
        raise InputError(f"line {line} is {cut}: each line must be one whole JSON object") from error
    except InputError:
        raise
    except DraftproofError as error:
        raise InputError(f"line {line}: {error}") from error


def checked(transcript: Transcript, target: Model) -> Transcript:
    """Return the transcript, or raise if the target cannot score every token of it."""
    line = transcript.line
    for name, ids in (("prompt", transcript.prompt), ("output", transcript.output)):
        if not ids:
            raise InputError(f"line {line}: the {name} has no tokens: leave the line out")
        strange = [token for token in ids if not 0 <= token < target.vocabulary]
        if strange:
            raise InputError(
                f"line {line}: {name} token id {strange[0]} is outside the vocabulary of {target.name!r} "
                f"(0 to {target.vocabulary - 1}): audit with the model that wrote the text"
            )
    length = len(transcript.prompt) + len(transcript.output) - 1  # the last token is scored, not fed
    if target.context is not None and length > target.context:
        raise InputError(
            f"line {line}: {length} tokens do not fit the {target.context} of {target.name!r}: leave the line out"
        )
    if transcript.accepted is not None and len(transcript.accepted) != len(transcript.output):
        raise InputError(
            f"line {line}: `accepted` has {len(transcript.accepted)} entries for {len(transcript.output)} output tokens"
        )
    return transcript


def write(path: str | Path, transcripts: Iterable[Transcript]) -> int:
    """Write transcripts as they come and return how many; an interrupted collection keeps those already written."""
    count = 0
    for count, transcript in enumerate(transcripts, start=1):
        with Path(path).open("w" if count == 1 else "a", encoding="utf-8") as file:
            file.write(json.dumps(as_dict(transcript)) + "\n")
    return count


def as_dict(transcript: Transcript) -> dict[str, Any]:
    """The line's JSON object; settings at their defaults are left out."""
    default = Sampling()
    settings = {name: getattr(transcript.sampling, name) for name in sorted(_SETTINGS)}
    changed = {name: value for name, value in settings.items() if value != getattr(default, name)}
    if transcript.sampling.grammar is not None:
        changed["grammar"] = transcript.sampling.grammar.as_dict
    strange = [name for name, value in changed.items() if callable(value)]
    if strange or transcript.sampling.processors:
        raise DraftproofError(f"{(*strange, 'processors')[0]} is code and cannot be written to a file: audit in memory")
    fields: dict[str, Any] = {
        "prompt_token_ids": list(transcript.prompt),
        "output_token_ids": list(transcript.output),
        "sampling": changed,
    }
    if transcript.accepted is not None:
        fields["accepted"] = [int(flag) for flag in transcript.accepted]
    if transcript.retokenised:
        fields["retokenised"] = True
    if transcript.engine:
        fields["engine"] = transcript.engine
    return fields


def _parse(entry: Any, line: int, target: Model) -> Transcript:
    if not isinstance(entry, dict):
        raise InputError(f"line {line} is {type(entry).__name__}, not an object with prompt, output and settings")
    unknown = sorted(set(entry) - _KEYS)
    if unknown:
        raise InputError(f"line {line}: unknown key {unknown[0]!r}: {_nearest(unknown[0], _KEYS)}")
    if "sampling" not in entry:
        raise InputError(f'line {line} has no settings: add "sampling": {{"temperature": ...}}, or {{}} for none')
    if "output_token_ids" not in entry:
        raise InputError(f"line {line} has no output_token_ids: an audit needs the ids that were sampled")
    sampling = _sampling(entry["sampling"], line, target)
    output = _ids(entry["output_token_ids"], "output_token_ids", line)
    finish, ends = entry.get("finish"), sampling.ends
    if finish is not None and finish not in _FINISHES:
        raise InputError(f'line {line}: finish {finish!r} is unknown: use "end" where the model ended the text')
    if finish == "end" and output[-1:] != () and output[-1] not in ends:
        # The end is a token like any other: leaving it out would hide how often it comes.
        if len(ends) != 1:
            raise InputError(f"line {line}: the text ended but its end token is missing: add it to output_token_ids")
        output = (*output, ends[0])
    accepted = entry.get("accepted")
    if accepted is not None:
        accepted = tuple(bool(flag) for flag in _ids(accepted, "accepted", line))
        accepted += (False,) * (len(output) - len(entry["output_token_ids"]))
    engine = entry.get("engine", "")
    if not isinstance(engine, str):
        raise InputError(f'line {line}: engine must be a name such as "vllm 0.32.0", not {engine!r}')
    prompt = _prompt(entry, line, target)
    return Transcript(prompt, output, sampling, accepted, bool(entry.get("retokenised")), line, engine)


def _prompt(entry: dict[str, Any], line: int, target: Model) -> tuple[int, ...]:
    from draftproof.engine.arguments import encode

    if "prompt_token_ids" in entry:
        return _ids(entry["prompt_token_ids"], "prompt_token_ids", line)
    if not isinstance(entry.get("prompt"), str | list):
        raise InputError(f"line {line} has no prompt: add prompt_token_ids, or prompt as text or chat messages")
    return encode(target, entry["prompt"], chat=False)


def _ids(value: Any, name: str, line: int) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(isinstance(token, int) for token in value):
        raise InputError(f"line {line}: {name} must be a list of whole numbers")
    return tuple(value)


def _sampling(settings: Any, line: int, target: Model) -> Sampling:
    if not isinstance(settings, dict):
        raise InputError(f'line {line}: sampling must be an object such as {{}} or {{"temperature": 0.7}}')
    values: dict[str, Any] = {
        str(_ALSO_CALLED.get(n, n)): v for n, v in settings.items() if n not in _WITHOUT_EFFECT and v is not None
    }
    for name in _OFF.keys() & values.keys():
        if values.pop(name) != _OFF[name]:
            raise InputError(f"line {line}: no law is known for {name}={settings[name]!r}: audit texts made without it")
    unknown = sorted(set(values) - _SETTINGS)
    if unknown:
        raise InputError(f"line {line}: unknown setting {unknown[0]!r}: {_nearest(unknown[0], _SETTINGS)}")
    if values.get("top_k") == -1:  # off, for some engines
        values["top_k"] = 0
    if isinstance(values.get("logit_bias"), dict):
        named = values["logit_bias"].items()  # JSON keys are strings
        values["logit_bias"] = {int(token) if token.isdecimal() else token: bias for token, bias in named}
    return Sampling(**{"end_tokens": target.end_tokens, **values})


def _nearest(word: str, words: Iterable[str]) -> str:
    near = nearest(word, words, cutoff=0.5)
    return f"did you mean {near!r}?" if near else f"choose from {', '.join(sorted(words))}"
