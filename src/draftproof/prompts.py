"""Prompts: a few built-in ones for measurements, or those of a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftproof.errors import DraftproofError, whole
from draftproof.noise import check_seed
from draftproof.paths import read_text
from draftproof.sampling import Sampling

PROMPTS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Tell the beginning of a story about a lighthouse keeper who finds a letter.",
    "List five things to check before a long bicycle tour, each with a reason.",
)
FIELDS = ("prompt", "question", "instruction", "turns")  # of a .jsonl object; the first one present counts
# what an object may say about its own text
OWN = (
    "max_new_tokens",
    "seed",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "grammar",
)


@dataclass(frozen=True)
class PromptEntry:
    """One prompt of a file, and what its line says besides."""

    prompt: str | list[Any]  # text, or chat messages
    place: str  # where it stands, for error messages
    id: Any = None
    settings: dict[str, Any] = field(default_factory=dict)  # those of OWN that it gives
    ignored: tuple[str, ...] = ()  # its other fields


def read(path: Path) -> list[str]:
    """Read the prompts of a .txt file, one per line, or of a .jsonl file, one per object."""
    lines = _lines(path)
    if path.suffix == ".txt":
        return [line.strip() for _, line in lines]
    return [_text(_object(line, place), place) for place, line in lines]


def read_entries(path: Path) -> list[PromptEntry]:
    """Read prompts with all that a .jsonl file says about them: messages, id, and settings of their own."""
    lines = _lines(path)
    if path.suffix == ".txt":
        return [PromptEntry(line.strip(), place) for place, line in lines]
    return [_entry(_object(line, place), place) for place, line in lines]


def _lines(path: Path) -> list[tuple[str, str]]:
    """The lines with something in them, each after its place."""
    if path.suffix not in (".txt", ".jsonl"):
        raise DraftproofError(f"prompts come from a .txt or .jsonl file, not from {path.name!r}: rename or convert it")
    lines = read_text(path, "prompts").split("\n")  # not splitlines(): a JSON string may contain other line separators
    numbered = [(f"line {n} of {path}", line) for n, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise DraftproofError(f"{path} contains no prompt: write one per line")
    return numbered


def _object(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise DraftproofError(f"{place} is not JSON ({error}): write one object per line") from error


def _entry(entry: Any, place: str) -> PromptEntry:
    messages = entry.get("messages") if isinstance(entry, Mapping) else None
    prompt = messages if isinstance(messages, list) and messages else _text(entry, place, "messages")
    settings = {name: entry[name] for name in OWN if entry.get(name) is not None}
    try:
        controls = dict(settings)
        whole("max_new_tokens", controls.pop("max_new_tokens", 1))
        check_seed(controls.pop("seed", 0))
        Sampling(**controls)
    except DraftproofError as error:
        raise DraftproofError(f"{place}: {error}") from error
    ignored = tuple(name for name in entry if name not in (*FIELDS, *OWN, "messages", "id"))
    return PromptEntry(prompt, place, entry.get("id"), settings, ignored)


def _text(entry: Any, place: str, *others: str) -> str:
    """The prompt in the first of FIELDS that has one; `others` are fields that might have had it."""
    for name in FIELDS if isinstance(entry, Mapping) else ():
        value = entry.get(name)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, str) and value.strip():
            return value
    raise DraftproofError(f"{place} has no prompt: put it into one of the fields {', '.join((*FIELDS, *others))}")
