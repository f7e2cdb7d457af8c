"""Time the kernels that draft and verify trees on one CUDA device, and check them against the laws.

    python -m draftproof.bench.trees --size 49152 --batch 1 --batch 32      # a row for each batch, as JSON

Times are per call, of ten calls in a CUDA graph: `guess_us` of each level, `traverse_us` of the whole tree.
"""

from __future__ import annotations

import argparse
from functools import partial
from json import dumps
from typing import Any, NamedTuple

import torch
from torch import Tensor

from draftproof import kernels
from draftproof.bench.kernels import MODES, SEED, about, graph
from draftproof.draft import Tree
from draftproof.errors import DraftproofError
from draftproof.kernels import Controls, NoiseKeys, Summary, agreement


class TreeCase(NamedTuple):
    """One step's input: logits as in src/draftproof/bench/kernels.py."""

    tree: Tree
    levels: list[list[int]]  # nodes with children, level by level
    target: Tensor
    draft: Tensor
    controls: Controls
    noise: NoiseKeys
    tokens: Tensor
    kept: Summary


def case(tree: Tree, batch: int, size: int, mode: str, device: str) -> TreeCase:
    """Logits like a language model's in spread, with a drafter whose laws overlap the target's by about 0.7."""
    generator = torch.Generator(device=device).manual_seed(SEED)
    levels = [nodes for level in tree.levels if (nodes := [node for node in level if tree.children(node)])]
    inner = [node for level in levels for node in level]
    target = torch.randn(batch, tree.size, size, device=device, generator=generator) * 4
    draft = target[:, inner] + torch.randn(batch, len(inner), size, device=device, generator=generator) * 0.7
    b = torch.arange(batch, device=device)
    controls = Controls.of([MODES[mode]] * batch, tree.size, size, device)
    tokens = torch.full((batch, tree.size), -1, dtype=torch.int64, device=device)
    kept = Summary.empty(batch, len(inner), target.device)
    return TreeCase(
        tree, levels, target.bfloat16(), draft.bfloat16(), controls, NoiseKeys(b * 0 + SEED, b, b * 0), tokens, kept
    )


def guess(data: TreeCase, level: int) -> None:
    """Draw the guesses after one level's nodes."""
    first = sum(map(len, data.levels[:level]))
    mine = slice(first, first + len(data.levels[level]))
    room = data.kept.at(mine)
    kernels.guess(
        data.draft[:, mine], data.levels[level], data.tree, data.tokens, data.controls, data.noise,
        summary=room, backend="triton",
    )  # fmt: skip


def traverse(data: TreeCase) -> kernels.Walked:
    """Verify the whole tree."""
    _, _, target, draft, controls, noise, tokens, kept = data
    return kernels.traverse(target, draft, tokens, data.tree, controls, noise, drafted=kept, backend="triton")


def compare(data: TreeCase) -> dict[str, Any]:
    """Compare outcomes with those of the float64 laws."""
    for level in range(len(data.levels)):
        guess(data, level)
    out = traverse(data)
    guessed = agreement.compare_guesses(data.tokens, data.draft, data.tree, data.controls, data.noise)
    walked = agreement.compare_tree(
        out, data.target, data.draft, data.tokens, data.tree, data.controls, data.noise
    )  # fmt: skip
    ties, wrong = (a + b for a, b in zip(guessed, walked, strict=True))
    return {"accepted": round(out.accepted.float().mean().item(), 2), "near_ties": ties, "wrong": wrong}


def row(tree: str, batch: int, size: int, mode: str) -> dict[str, Any]:
    """Times and agreement of one shape."""
    if not (torch.cuda.is_available() and kernels.available()):
        raise DraftproofError("draftproof.bench.trees needs a CUDA device and Triton: install draftproof[gpu] there")
    data = case(Tree.parse(tree), batch, size, mode, "cuda")
    agreed = compare(data)
    times = [round(graph(partial(guess, data, level), 10), 1) for level in range(len(data.levels))]
    return {
        "bench": "trees", "tree": tree, "B": batch, "V": size, "mode": mode, **agreed,
        "guess_us": times, "traverse_us": round(graph(lambda: traverse(data), 10), 1), **about(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the kernels that draw and verify trees.")
    parser.add_argument("--tree", default="best:20x5")
    parser.add_argument("--size", type=int, action="append", help="vocabulary")
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--mode", choices=list(MODES), default="temp")
    arguments = parser.parse_args()
    for size in arguments.size or [49152, 128256]:
        for batch in arguments.batch or [1, 8, 32]:
            print(dumps(row(arguments.tree, batch, size, arguments.mode)), flush=True)


if __name__ == "__main__":
    main()
