"""The campaign in numbers: a table by area, and the record from which the docs are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.mutants.campaign import Result
from benchmarks.mutants.equivalents import EQUIVALENT


def summary(results: Sequence[Result]) -> str:
    """Lines for people: how many of each area were killed, are equivalent, or are left."""
    lines = [f"{'':10} {'mutants':>8} {'killed':>8} {'same':>8} {'left':>8}"]
    for area in [*dict.fromkeys(result.area for result in results), "all"]:
        own = [result for result in results if area in (result.area, "all")]
        killed = sum(result.fate == "killed" for result in own)
        same = sum(result.fate != "killed" and result.name in EQUIVALENT for result in own)
        lines.append(f"{area:10} {len(own):8} {killed:8} {same:8} {len(own) - killed - same:8}")
    return "\n".join(lines)


def record(results: Sequence[Result], seed: int) -> dict[str, Any]:
    """All results and their origin."""
    from draftproof.bench.rows import facts  # not before mutants are run: their processes must import it themselves

    rows = [
        {
            "mutant": result.name,
            "area": result.area,
            "line": result.line,
            "operator": result.operator,
            "fate": "equivalent" if result.fate != "killed" and result.name in EQUIVALENT else result.fate,
            "by": EQUIVALENT.get(result.name, "") if result.fate != "killed" else result.by,
        }
        for result in results
    ]
    return {**facts("cpu")._asdict(), "seed": seed, "mutants": rows}
