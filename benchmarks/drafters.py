"""How good the shipped drafters are: overlap with the target by guess, and tokens per target call in the engine.

`python -m benchmarks.drafters PROMPTS` prints the table of docs/drafters.md and writes
benchmarks/results/drafters.json. The target answers each prompt once; the drafters are compared with it along those
answers, and then draft for it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from draftproof.distill import data, evaluate, head, model
from draftproof.distill.data import Source, Text
from draftproof.distill.student import Student
from draftproof.draft import Tree, as_tree, grow
from draftproof.engine.generate import generate
from draftproof.models import drafter, load
from draftproof.models.files.bundled import folder
from draftproof.models.hf import HFModel
from draftproof.prompts import read
from draftproof.sampling import Sampling

RESULTS = Path(__file__).parent / "results" / "drafters.json"
TEMPERATURES = (1.0, 0.7)
# where a first, second, ... guess of the same token is accepted: the tree of 20 guesses that gains most from that
TREE = as_tree(grow((0.6, 0.13, 0.06, 0.03), 21, 8))
SHAPES = {"chain": (Tree.chain(5), "block"), "tree": (TREE, "traversal")}


def answers(target: HFModel, prompts: list[str], length: int, seed: int) -> Text:
    """The target's answers at each temperature, up to their end."""
    source = Source.of(target, prompts)
    rng = np.random.default_rng(seed)
    given = [source.turn(True, rng)[0] for _ in range(len(prompts) * len(TEMPERATURES))]
    script = np.full((len(given), 2, max(map(len, given)) + 1), -1, dtype=np.int32)
    for row, ids in zip(script, given, strict=True):
        row[0, : len(ids)] = ids
    heat = torch.tensor(TEMPERATURES).repeat_interleave(len(prompts))
    text = data.write(target, torch.from_numpy(script), heat, length, seed)
    ended = text.drawn & torch.isin(text.tokens, torch.tensor(target.end_tokens, dtype=torch.int32))
    return text._replace(drawn=text.drawn & (ended.int().cumsum(1) - ended.int() == 0))


def student(name: str, target: HFModel) -> Student:
    """The shipped drafter as it was in training."""
    if name == "tiny":
        return model.student(target, 0, 0, begin=str(folder("tiny")))
    return head.resume(target, folder("smollm2-head"), 1)


def tokens_per_call(target: HFModel, name: str, prompts: list[str], temperature: float, shape: str, count: int) -> Any:
    """In the engine, averaged over the verifier's noise."""
    tree, verify = SHAPES[shape]
    guesser = drafter(name, target)
    steps = []
    for seed, prompt in enumerate(prompts):
        settings: dict[str, Any] = {"draft": guesser, "tree": tree, "verify": verify, "seed": seed}
        sampling = Sampling(temperature=temperature)
        steps += generate(target, prompt, sampling=sampling, max_new_tokens=count, **settings).trace.steps
    expected = 1 + np.array([step.expected for step in steps])
    return float(expected.mean()), float(expected.std() / len(expected) ** 0.5)


def table(root: Path) -> str:
    """What was recorded, for docs/drafters.md."""
    rows = json.loads((root / "benchmarks/results/drafters.json").read_text(encoding="utf-8"))
    head = "| drafter | temperature | overlap | in reach | chain of 5, `block` | tree of 20, `traversal` |\n"
    return head + "|---|---|---|---|---|---|\n" + "".join(line(row) + "\n" for row in rows)


def line(row: dict[str, Any]) -> str:
    overlap = [f"{value:.3f}" for value in row["overlap"][:4]]
    guesses = f"{overlap[0]} at every position" if len(set(overlap)) == 1 else " ".join(overlap)
    calls = " | ".join("{:.2f} ± {:.2f}".format(*row[shape]) for shape in SHAPES)
    return f"| {row['drafter']} | {row['temperature']:.1f} | {guesses} | {row['reach']:.3f} | {calls} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--count", type=int, default=24, help="prompts for the overlap")
    parser.add_argument("--drafted", type=int, default=8, help="prompts for the engine")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer in the engine")
    parser.add_argument("--length", type=int, default=256, help="of prompt and answer for the overlap")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    every = [prompt for prompt in read(chosen.prompts) if len(prompt) < 500]
    prompts = [every[i] for i in np.random.default_rng(chosen.seed).permutation(len(every))[: chosen.count]]
    target, engine = load("smollm2", lean=False), load("smollm2")
    text = answers(target, prompts, chosen.length, chosen.seed)
    rows = []
    for name in ("head", "tiny"):
        for temperature in TEMPERATURES:
            found = evaluate.measure(target, student(name, target), text, temperature, rows=2)
            row = {"drafter": name, "prompts": len(prompts), **found._asdict()}
            for shape in SHAPES:
                part = prompts[: chosen.drafted]
                row[shape] = tokens_per_call(engine, name, part, temperature, shape, chosen.tokens)
            rows.append(row)
            print(line(row), flush=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
