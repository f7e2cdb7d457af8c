"""Texts that fit a grammar, as measured: the table of docs/sampling.md, from benchmarks/results/grammar.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = "benchmarks/results/grammar.json"
HEAD = "| | plain | with the head | times as fast | without the prompt | transformers and xgrammar | times as fast |"
RULE = "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"


def measured(root: Path) -> str:
    """Validity, the table of speeds, and what texts without a grammar lose."""
    rows = json.loads((root / RESULTS).read_text(encoding="utf-8"))
    speeds, batches = ([row for name, row in rows.items() if name.split()[0] == kind] for kind in ("speed", "batch"))
    valid, share, first = rows["valid"], rows["masks"]["share"], speeds[0]
    runs = {row["command"]: row for row in speeds}.values()
    checked = "all are valid" if not valid["faults"] else f"{len(valid['faults'])} are not valid"
    return "\n".join(
        [
            f"{valid['texts']} texts of {valid['schemas']} JSON schemas by SmolLM2 in int8 with its head:",
            f"{valid['finishes']['end']} ended by themselves, and {checked}; the others were cut after 160 tokens.",
            "Tokens a second, one text at a time:",
            "",
            *(HEAD, RULE, *(_line(row) for row in speeds)),
            "",
            f"In int8, masks take {share['masks']:.1%} of the time, and all of the grammar {share['all']:.1%}. By",
            "their tokens a CPU second, three texts without a grammar are slowed by a fourth that has one:",
            f"{'; '.join(map(_slowed, batches))}.",
            "",
            f"{first['schemas']} schemas:",
            "; ".join(map(_origin, runs)) + ".",
            "",
            *(_on_device(rows["device"]) if "device" in rows else ()),
        ]
    )


def _origin(row: dict[str, Any]) -> str:
    machine = f"{row['machine']['cpu']}, {row['machine']['threads']} threads"
    return f"`{row['command']}`, commit {row['commit']}, {row['date']}, {machine}"


def _on_device(row: dict[str, Any]) -> list[str]:
    rate = {name: f"{speed:.0f}" for name, speed in row["tokens_per_s"].items()}
    return [
        "On a GPU the eager stepper writes texts under a grammar ([GPU](gpu.md)), one at a time and in bfloat16 with",
        f"{rate['grammar, head']} tokens a second by the head and {rate['grammar, none']} plainly. Those without come",
        f"with {rate['free, head']} and {rate['free, none']}; {row['schemas']} schemas, {row['machine']['gpu']},",
        f"`{row['command']}`, commit {row['commit']}, {row['date']}.",
        "",
    ]


def _line(row: dict[str, Any]) -> str:
    rate, beside = row["tokens_per_s"], row["head_beside"]
    peer = "transformers and xgrammar"
    cells = (
        f"{row['dtype']}, temperature {row['temperature']:g}",
        *(f"{rate[name]:.0f}" for name in ("plain", "head")),
        f"{beside['plain']:.2f}",
        f"{row['head_beside_plain_after_the_prompt']:.2f}",
        f"{rate[peer]:.0f}",
        f"{beside[peer]:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def _slowed(row: dict[str, Any]) -> str:
    lengths = "lengths chosen" if row["tree"] == "chosen" else f"`{row['tree']}`"
    return f"{row['dtype']}, {lengths}: {row['slower']:.1%}"
