"""The table of verification on a GPU, from rows of more than one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import vllm_device as bench


def row(side: str, batch: int, us: float, graph: float | None, commit: str = "new") -> dict[str, Any]:
    origin = {"machine": {"gpu": "GPU"}, "versions": {"vllm": "1", "torch": "2", "triton": "3"}, "command": "go"}
    shape = {"bench": "vllm device", "side": side, "rule": "token", "mode": "temp", "V": 128_256, "B": batch}
    return {**shape, **origin, "us": us, "us_in_graph": graph, "seed": 1, "commit": commit, "date": "today"}


def test_the_table_is_of_the_newest_run(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks" / "results" / "vllm-h200.jsonl"
    assert "No run" in bench.table(tmp_path)
    path.parent.mkdir(parents=True)
    rows = [
        row("vLLM", 1, 900, 900, "old"), row("vLLM", 1, 90, 24), row("plug-in", 1, 60, 16), row("vLLM", 64, 80, None),
        row("plug-in", 64, 40, 8),
    ]  # fmt: skip
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    shown = bench.table(tmp_path).splitlines()
    assert shown[0] == "| V | controls | rule | B = 1 | B = 64 | B = 1, launched | B = 64, launched |"
    cells = "24 / 16, 1.5x | not captured / 8 | 90 / 60, 1.5x | 80 / 40, 2.0x"
    assert shown[2] == f"| 128,256 | temperature | `token` | {cells} |"
    assert shown[-1] == "`go`: GPU; vllm 1, torch 2, triton 3; seed 1; commit new, today."
