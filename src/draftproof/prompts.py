"""Prompts for measurements: a few built-in ones, or those of a file."""

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
FIELDS = ("prompt", "question", "instruction", "turns")  # of a .jsonl object; the first one present counts


def read(path: Path) -> list[str]:
    """Read the prompts of a .txt file, one per line, or of a .jsonl file, one per object."""
    if path.suffix not in (".txt", ".jsonl"):
        raise DraftproofError(f"prompts come from a .txt or .jsonl file, not from {path.name!r}: rename or convert it")
    lines = read_text(path, "prompts").split("\n")  # not splitlines(): a JSON string may contain other line separators
    numbered = [(n, line) for n, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise DraftproofError(f"{path} contains no prompt: write one per line")
    if path.suffix == ".txt":
        return [line.strip() for _, line in numbered]
    return [_prompt(line, f"line {n} of {path}") for n, line in numbered]


def _prompt(line: str, place: str) -> str:
    try:
        entry: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise DraftproofError(f"{place} is not JSON ({error}): write one object per line") from error
    for name in FIELDS if isinstance(entry, Mapping) else ():
        value = entry.get(name)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, str) and value.strip():
            return value
    raise DraftproofError(f"{place} has no prompt: put it into one of the fields {', '.join(FIELDS)}")
