"""Rows of cases, kept one JSON object a line; and what they come to, as a table for a terminal and for docs/gpu.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from draftproof.bench.rows import read

Row = dict[str, Any]
PARTS = ("door", "family", "dtype", "draft", "rule", "control", "batch", "prompt", "stepper")
RESULTS = Path(__file__).resolve().parents[1] / "results" / "device.jsonl"


def done(path: Path, commit: str, device: str) -> dict[str, Row]:
    """The rows of this commit and device that hold, by case: the others are run again."""
    rows = read(path) if path.exists() else []
    return {row["case"]: row for row in rows if (row["commit"], row["device"]) == (commit, device) and row["ok"]}


def last_run(rows: Iterable[Row]) -> list[Row]:
    """The rows of the commit that was run last, one for each case."""
    found = list(rows)
    return list({row["case"]: row for row in found if row["commit"] == found[-1]["commit"]}.values()) if found else []


def lines(rows: Sequence[Row]) -> list[tuple[str, str, int, int]]:
    """For every part of a case and each of its values: how many cases had it, and how many of those failed."""
    found: dict[tuple[str, str], list[bool]] = {}
    for part in PARTS:
        for row in rows:
            if part in row:
                found.setdefault((part, str(row[part])), []).append(row["ok"])
    return [(*key, len(oks), oks.count(False)) for key, oks in found.items()]


def summary(rows: Sequence[Row]) -> str:
    """A table for a terminal, with the failures below it."""
    shown = [f"{part:9} {value:20} {count:4} cases {failed:4} failed" for part, value, count, failed in lines(rows)]
    shown += [f"FAILED {row['case']}: {row['error']}" for row in rows if not row["ok"]]
    failed = sum(not row["ok"] for row in rows)
    left_out = sum(row["check"].startswith("left out") for row in rows)
    return "\n".join([*shown, f"{len(rows)} cases, {failed} failed, {left_out} left out"])


def page_table(root: Path) -> str:
    """For docs/gpu.md: the last recorded run on a GPU, or that there is none."""
    path = root / RESULTS.relative_to(RESULTS.parents[2])
    rows = last_run(row for row in (read(path) if path.exists() else []) if row["device"].startswith("cuda"))
    if not rows:
        return "No run on a GPU is recorded at this version.\n"
    first = rows[0]
    failed, seconds = sum(not row["ok"] for row in rows), sum(row["seconds"] for row in rows)
    about = f"{len(rows)} cases on {first['machine']['gpu']} at commit `{first['commit']}` ({first['date']}), "
    about += f"torch {first['versions']['torch']}: {failed} failed. Their times add up to {seconds:.0f} s.\n\n"
    table = ["| part | value | cases | failed |", "| --- | --- | --- | --- |"]
    for part, value, count, bad in lines(rows):
        table.append(f"| {part} | {value.replace('|', '/')} | {count} | {bad} |")
    return about + "\n".join(table) + "\n"
