"""The score of the mutation campaign in docs/exactness.md, from what `python -m benchmarks.mutants` recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FATES = (("killed",), ("equivalent",), ("survived", "open"))  # open: not run against all tests yet
HEAD = """| area | mutants | noticed | the same program | passed the tests |
| --- | --- | --- | --- | --- |
"""


def score(root: Path) -> str:
    """The score in a sentence, a line for each area, the mutants that change nothing and why, and the origin."""
    record = json.loads((root / "benchmarks/results/mutants.json").read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = record["mutants"]
    noticed, same, passed = (_of(rows, fate) for fate in FATES)
    said = f"Of {len(rows)} mutants, {len(noticed)} fail a test, {len(same)} compute the same, {len(passed)} pass "
    said += f"({100 * (len(noticed) + len(same)) / len(rows):.1f}% noticed or the same).\n\n"
    lines = "".join(_line(area, [row for row in rows if row["area"] == area]) for area in _areas(rows))
    reasons = "".join(f"- `{row['mutant']}`: {row['by']}\n" for row in same)
    left = "".join(f"- `{row['mutant']}`\n" for row in passed)
    parts = [said, HEAD, lines, "\nThose that compute the same, each with the reason:\n\n", reasons]
    parts += ["\nThose that pass:\n\n", left] if left else []
    return "".join([*parts, f"\n{_origin(record)}\n"])


def _of(rows: list[dict[str, Any]], fate: tuple[str, ...]) -> list[dict[str, Any]]:
    return [row for row in rows if row["fate"] in fate]


def _areas(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["area"] for row in rows))


def _line(area: str, rows: list[dict[str, Any]]) -> str:
    counts = [len(rows), *(len(_of(rows, fate)) for fate in FATES)]
    return f"| {area} | {' | '.join(map(str, counts))} |\n"


def _origin(record: dict[str, Any]) -> str:
    stack = ", ".join(f"{name} {record['versions'][name]}" for name in ("python", "torch", "triton"))
    where = f"{record['machine']['cpu']}; {stack}; seed {record['seed']}; commit {record['commit']}, {record['date']}"
    return f"`python -m benchmarks.mutants`: {where}"
