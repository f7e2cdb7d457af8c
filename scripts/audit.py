"""The table of engines in docs/audit.md, from the rows that `python -m benchmarks.audit` recorded."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEAD = """| target | engine | settings | tokens | verdict | largest evidence | would have been seen |
| --- | --- | --- | --- | --- | --- | --- |
"""


def table(root: Path) -> str:
    """A line for each engine and setting, then where and how they were made."""
    rows = json.loads((root / "benchmarks/results/audit.json").read_text(encoding="utf-8"))
    lines = "".join(f"| {' | '.join(_cells(name, row))} |\n" for name, row in rows.items())
    origins = dict.fromkeys(map(_origin, rows.values()))
    return f"{HEAD}{lines}\n" + "".join(f"- {origin}\n" for origin in origins)


def _cells(name: str, row: dict[str, Any]) -> Iterator[str]:
    target, _, rest = name.partition(": ")
    engine, _, setting = rest.partition(", T=")
    yield from (target, engine, f"T = {setting}", f"{row['tokens']:,}")
    yield "exact so far" if row["exact"] else "**not exact**"
    yield f"{math.exp(row['evidence']):.3g}"
    leaks = [bias["share"] for bias in row["power"] if bias["family"] == "draft leaks"]
    yield f"{100 * leaks[0]:.2g}%" if leaks and leaks[0] < 1 else ""


def _origin(row: dict[str, Any]) -> str:
    machine, versions = row["machine"], row["versions"]
    place = machine.get("gpu") or f"{machine['cpu']}, {machine['threads']} threads"
    stack = ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers") if name in versions)
    return f"`{row['command']}`: {place}; {stack}; commit {row['commit']}, {row['date']}"
