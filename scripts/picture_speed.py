"""The README's picture of speed: tokens a second beside other libraries, from the rows of `draftproof bench`.

A panel is one comparison of benchmarks/results, all of whose bars were measured in turns in one run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from draftproof.bench.rows import read

ROOT = Path(__file__).resolve().parents[1]
PATH = "docs/figures/speed.svg"
# Colours that hold on white and on black, as in scripts/figure.py.
INK, OURS, PLAIN, THEIRS = "#768390", "#347d39", "#6a9955", "#8b949e"
WIDTH, LABEL, VALUE, BAR, GAP, HEAD = 840, 250, 60, 20, 8, 44
FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"


class Panel(NamedTuple):
    """Which rows are compared, by some of their fields, and what to call them."""

    title: str
    file: str
    fields: dict[str, Any]
    names: dict[str, str]  # a row's name -> the label of its bar


PANELS = (
    Panel(
        "SmolLM2-135M on two CPU cores, one text",
        "engine-cpu.jsonl",
        {"bench": "demo"},
        {
            "draftproof block": "draftproof, int8, trained head",
            "draftproof plain": "draftproof, int8, no draft",
            "transformers float32": "transformers, float32",
        },
    ),
    Panel(
        "SmolLM2-135M on two CPU cores, 16 texts, float32, no draft",
        "engine-cpu.jsonl",
        {"bench": "engine", "batch": 16, "dtype": "float32"},
        {"draftproof plain": "draftproof", "vllm plain": "vLLM"},
    ),
    Panel(
        "A model of the shape of an 8B on one H200, one text, bfloat16",
        "engine-h200.jsonl",
        {"bench": "engine", "batch": 1, "draft": "smollm2", "tree": "chain:5", "temperature": 1.0},
        {
            "draftproof block": "draftproof, small draft model",
            "draftproof plain": "draftproof, no draft",
            "transformers static": "transformers, compiled, no draft",
            "transformers plain": "transformers, no draft",
            "transformers assisted": "transformers, same draft model",
        },
    ),
)


def numbers(root: Path = ROOT) -> list[dict[str, Any]]:
    """For each panel its bars: the name of the row, the label, and tokens a second."""
    return [{"title": panel.title, "bars": list(_bars(root, panel))} for panel in PANELS]


def _bars(root: Path, panel: Panel) -> Iterator[list[Any]]:
    """Of the last run that has all of the panel's ways."""
    rows = [row for row in read(root / "benchmarks/results" / panel.file) if panel.fields.items() <= row.items()]
    runs: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        runs.setdefault((row["command"], row["commit"]), {})[row["name"]] = row
    run = [run for run in runs.values() if panel.names.keys() <= run.keys()][-1]
    for name, label in panel.names.items():
        yield [name, label, run[name]["tokens_per_s"]]


def draw(root: Path = ROOT) -> str:
    """The picture as SVG text, on a transparent ground."""
    shown = numbers(root)
    lines, y = [], 4
    for panel in shown:
        lines.append(_text(0, y + 18, panel["title"], INK, weight=600))
        y += HEAD - GAP
        most = max(speed for _, _, speed in panel["bars"])
        for name, label, speed in panel["bars"]:
            lines += _bar(y, name, label, speed, (WIDTH - LABEL - VALUE) / most)
            y += BAR + GAP
        y += 18
    y -= 2
    lines.append(
        _text(
            LABEL,
            y + 8,
            "tokens a second, median over the rounds; all ways of one panel were measured in turns",
            INK,
            size=12,
        )
    )
    height = y + 18
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" font-family="{FONT}" font-size="14" role="img">',
            f"<!-- numbers {json.dumps(shown)} -->",
            "<title>Tokens a second beside other libraries</title>",
            *lines,
            "</svg>\n",
        ]
    )


def _bar(y: int, name: str, label: str, speed: float, scale: float) -> Iterator[str]:
    colour = THEIRS if not name.startswith("draftproof") else PLAIN if name.endswith("plain") else OURS
    yield _text(LABEL - 10, y + BAR / 2 + 5, label, INK, anchor="end")
    yield f'<rect x="{LABEL}" y="{y}" width="{max(speed * scale, 1):.1f}" height="{BAR}" rx="3" fill="{colour}"/>'
    yield _text(LABEL + speed * scale + 8, y + BAR / 2 + 5, f"{speed:.0f}", INK, weight=600)


def _text(
    x: float, y: float, text: str, colour: str, *, size: int = 14, weight: int = 400, anchor: str = "start"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:g}" fill="{colour}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


if __name__ == "__main__":
    (ROOT / PATH).write_text(draw(), encoding="utf-8")
