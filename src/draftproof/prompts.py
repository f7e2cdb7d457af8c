"""Prompts to measure on: a few of our own, or a file of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftproof.errors import DraftproofError
from draftproof.paths import read_text

PROMPTS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Tell the beginning of a story about a lighthouse keeper who finds a letter.",
    "List five things to check before a long bicycle tour, each with a reason.",
)
FIELDS = ("prompt", "question", "instruction", "turns")  # of a .jsonl file, the first that is there


def read(path: Path) -> list[str]:
    """The prompts of a .txt file, one a line, or of a .jsonl file, one an object."""
    if path.suffix not in (".txt", ".jsonl"):
        raise DraftproofError(f"prompts come from a .txt or .jsonl file, not from {path.name!r}: rename or convert it")
    lines = read_text(path, "prompts").split("\n")  # and no other end of line: JSON may hold those within a text
    numbered = [(n, line) for n, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise DraftproofError(f"{path} holds no prompt: write one a line")
    if path.suffix == ".txt":
        return [line.strip() for _, line in numbered]
    return [_prompt(line, f"line {n} of {path}") for n, line in numbered]


def _prompt(line: str, place: str) -> str:
    try:
        entry: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise DraftproofError(f"{place} is not JSON ({error}): write one object a line") from error
    for name in FIELDS if isinstance(entry, Mapping) else ():
        value = entry.get(name)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, str) and value.strip():
            return value
    raise DraftproofError(f"{place} has no prompt: give it as one of {', '.join(FIELDS)}")
