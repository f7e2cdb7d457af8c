"""The table of engines in docs/audit.md, from the rows that `python -m benchmarks.audit` recorded."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SETTINGS = ("T=1", "T=0.7, top-p 0.9")
HEAD = f"""| target | engine | tokens | verdict | evidence at {SETTINGS[0]} | at {SETTINGS[1]} | accepted | would show |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def table(root: Path) -> str:
    """A line for each engine, then where and how the rows were made."""
    rows = json.loads((root / "benchmarks/results/audit.json").read_text(encoding="utf-8"))
    engines: dict[tuple[str, str], dict[str, Any]] = {}
    for name, row in rows.items():
        target, _, rest = name.partition(": ")
        engine, _, setting = rest.partition(", T=")
        engines.setdefault((target, engine.replace("|", r"\|")), {})[f"T={setting}"] = row
    lines = "".join(f"| {' | '.join((*name, *_cells(made)))} |\n" for name, made in engines.items())
    origins = dict.fromkeys(map(_origin, rows.values()))
    return f"{HEAD}{lines}\n" + "".join(f"- {origin}\n" for origin in origins)


def _cells(made: dict[str, Any]) -> Iterator[str]:
    """Of one engine's rows, by setting; where figures differ, those of the settings in their order."""
    there = [made[setting] for setting in SETTINGS if setting in made]
    yield _both(f"{row['tokens']:,}" for row in there)
    yield "exact so far" if all(row["exact"] for row in there) else "**not exact**"
    yield from (f"{math.exp(made[setting]['evidence']):.3g}" if setting in made else "" for setting in SETTINGS)
    yield _both(f"{row['accepted']:.0%}" for row in there if row.get("accepted"))
    leaks = [bias["share"] for row in there for bias in row["power"] if bias["family"] == "draft leaks"]
    yield _both(f"{100 * leak:.2g}%" for leak in leaks if leak is not None and leak < 1)


def _both(words: Iterator[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def _origin(row: dict[str, Any]) -> str:
    machine, versions = row["machine"], row["versions"]
    place = machine.get("gpu") or f"{machine['cpu']}, {machine['threads']} threads"
    stack = ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers") if name in versions)
    command = re.sub(r" --only.*?(?= --|$)", "", row["command"])
    return f"`{command}`: {place}; {stack}; commit {row['commit']}, {row['date']}"
