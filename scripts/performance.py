"""docs/performance.md from the rows that `draftproof bench` recorded: `python -m scripts.performance` writes it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from draftproof.bench.rows import caption, cells, heads, read

ROOT = Path(__file__).resolve().parents[1]
TITLES = {"engine": "Sampling", "samples": "Many samples of one prompt", "demo": "The demo"}
INTRODUCTION = """# Performance

How fast draftproof is, measured beside other libraries with the same models and prompts in the same run.

`make docs` writes this page from the rows in benchmarks/results. The command that made them is under each heading;
`--json FILE` appends rows to a file. All rows of a table are measured in turns, round by round, and in each round all
use the same prompts and seed. A speed is the median over the rounds. A ratio is the median of the ratios within each
round, so a slow moment of the machine slows both sides. No text ends early: all have the same length.

- *draftproof plain* samples one token per call; *draftproof* with the name of a [verifier](algorithms.md) drafts and
  verifies.
- *transformers plain* is `generate()`; *static* uses a static cache and a compiled model; *assisted* drafts with the
  same draft model and *lookup* with n-grams of the text, as many tokens per call as ours, one text at a time.
- *tokens/call* is per text and target call. *Time* is the share of each phase; *other* is what lies between them. On a
  GPU the phases are measured by its own clock, *prompt* is prefill, and *overhead* is what the host adds.
- *Memory* is what is needed beside the weights, KV cache included.
- *p20 to p80*: the 20th and 80th percentile of the rounds. A `+` after a commit: with local changes.
- *smollm2 as 8b* (`--inflate 8b`): SmolLM2 in the shape of an 8B model. The added heads and layers are computed and
  change nothing, so the text and the acceptance are the small model's, and the cost is the large one's. `--blur` is the
  share of noise in the weights of a drafter that is the small model itself: it sets how often drafts are accepted. Such
  rows show the speed at a given acceptance, not how often a real 8B model accepts.
"""


def main() -> None:
    (ROOT / "docs/performance.md").write_text(page(ROOT), encoding="utf-8")


def page(root: Path) -> str:
    """The page's text; rows of other benchmarks have pages of their own."""
    parts = [INTRODUCTION]
    for _, found in groupby(_rows(root), key=_origin):
        parts += _section(list(found))
    return "\n".join(parts)


def headline(root: Path) -> str:
    """The README's sentences about speed, from the last rows of the demo and of a GPU with all peers."""
    ours = [row for row in _rows(root) if row["name"].startswith("draftproof") and not row["name"].endswith("plain")]
    demo = [row for row in ours if row["bench"] == "demo"][-1]
    large = [row for row in ours if {"transformers assisted", "transformers static"} <= row["ratio_to"].keys()][-1]
    same = [row for row in _rows(root) if (_origin(row), caption(row)) == (_origin(large), caption(large))]
    speed = {row["name"]: f"{row['tokens_per_s']:.0f}" for row in same}
    times = {name: f"{ratio:.2g} times" for name, ratio in demo["ratio_to"].items()}
    gpu = large["machine"]["gpu"].split()[-1]
    text = (
        f"- **Fast, measured beside others in the same run.** SmolLM2-135M in 8-bit integers on two CPU cores: "
        f"{demo['tokens_per_s']:.0f} tokens a second with `draftproof bench demo`, which is "
        f"{times['draftproof plain']} our own plain sampling and {times['transformers float32']} transformers' "
        f"`generate` in float32. SmolLM2 padded to the cost of an 8B model, with a noisy SmolLM2 as its drafter, on "
        f"one {gpu}: {speed[large['name']]} tokens a second; transformers' assisted generation has "
        f"{speed['transformers assisted']}, its compiled sampling with a static cache {speed['transformers static']}. "
        f"[Performance](docs/performance.md) has the tables and the commands."
    )
    return textwrap.fill(text, 120, subsequent_indent="  ", break_on_hyphens=False) + "\n  "  # the marker after it


def _rows(root: Path) -> list[dict[str, Any]]:
    files = sorted((root / "benchmarks/results").glob("*.jsonl"))
    return [row for file in files for row in read(file) if row.get("bench") in TITLES]


def _origin(row: Mapping[str, Any]) -> tuple[str, ...]:
    return str(row["bench"]), str(row["command"]), str(row["machine"]), str(row["commit"])


def _section(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Everything that one command measured."""
    first = rows[0]
    machine = first["machine"]
    place = machine.get("gpu") or f"{machine['cpu']}, {machine['threads']} threads"
    drafts = "plain" if first["draft"] == "none" else f"draft {first['draft']} {first['tree'] or ''}".rstrip()
    setting = f"{first['target'].removesuffix(' (int8)')} in {first['dtype']}, {drafts}, batch {first['batch']}"
    yield f"## {TITLES[first['bench']]}: {setting}, {place}\n"
    yield f"```sh\n{first['command']}\n```\n"
    versions = ", ".join(f"{name} {number}" for name, number in first["versions"].items())
    yield f"Commit {first['commit']}, {first['date']}; {versions}.\n"
    for title, made in groupby(rows, key=caption):
        table = list(made)
        yield f"**{title}**\n"
        yield _table([heads(table), *(cells(row, table) for row in table)])


def _table(lines: Sequence[Sequence[str]]) -> str:
    head, *body = lines
    marks = ["---" if name in ("", "time") else "---:" for name in head]
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, marks, *body))


if __name__ == "__main__":
    main()
