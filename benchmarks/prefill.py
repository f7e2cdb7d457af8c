"""How long a long prompt takes until its first token, beside transformers' own network on the same token ids.

`python -m benchmarks.prefill` measures by `generate` with one new token, and writes benchmarks/results/prefill.json.
Both sides take turns; a ratio is the median of the ratios within a round, so a slow moment of the machine slows both.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from draftproof import generate
from draftproof.bench.rows import facts
from draftproof.models import load
from draftproof.models.registry import read

RESULTS = Path(__file__).parent / "results" / "prefill.json"
CASES = {"tiny": (500, 4000), "smollm2": (500, 1500)}  # tokens of a prompt
DTYPES = ("float32", "int8")  # transformers runs in float32 beside either


def measure(target: str, dtype: str, lengths: tuple[int, ...], repeat: int, seed: int) -> list[dict[str, Any]]:
    """A row for each length of the prompt."""
    model, (theirs, _) = load(target, dtype=dtype, device="cpu"), read(target, torch.float32)
    rows = []
    for length in lengths:
        ids = np.random.default_rng(seed).integers(5, min(1000, model.vocabulary), length).tolist()
        sides: dict[str, Callable[[], object]] = {
            "draftproof": lambda ids=ids: generate(model, ids, draft=None, max_new_tokens=1, seed=seed),
            "transformers": lambda ids=ids: theirs(torch.tensor([ids]), logits_to_keep=1),
        }
        spent = in_turns(sides, repeat)
        ratio = median(a / b for a, b in zip(spent["draftproof"], spent["transformers"], strict=True))
        seconds = {name: round(median(times), 4) for name, times in spent.items()}
        row = {"target": target, "dtype": dtype, "prompt": length, "seconds": seconds, "ratio": round(ratio, 3)}
        print(row, flush=True)
        rows.append({**row, "repeat": repeat, "seed": seed})
    return rows


@torch.no_grad()
def in_turns(sides: dict[str, Callable[[], object]], repeat: int) -> dict[str, list[float]]:
    """Seconds of each side in each round, after one that does not count."""
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeat + 1):
        for name, run in sides.items():
            start = time.perf_counter()
            run()
            spent[name].append(time.perf_counter() - start)
    return {name: times[1:] for name, times in spent.items()}


def main() -> None:
    asked = argparse.ArgumentParser(description="Long prompts beside transformers' network.")
    asked.add_argument("--repeat", type=int, default=7)
    asked.add_argument("--seed", type=int, default=0)
    chosen = asked.parse_args()
    rows = [
        row
        for target, lengths in CASES.items()
        for dtype in DTYPES
        for row in measure(target, dtype, lengths, chosen.repeat, chosen.seed)
    ]
    about = {**facts("cpu")._asdict(), "command": "python -m benchmarks.prefill"}
    RESULTS.write_text(json.dumps([{**row, **about} for row in rows], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
