"""The launches of a step on a tree: guesses level by level, verification wave by wave; the host waits for nothing."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from draftproof.draft import Tree
from draftproof.kernels.chain import launch
from draftproof.kernels.lib import launching
from draftproof.kernels.tree import distinct
from draftproof.kernels.tree import traversal as waves
from draftproof.kernels.types import Controls, Names, Summary, Walked
from draftproof.noise import Lane


class Shape(NamedTuple):
    """A tree as numbers on a device, int32; -1 for none."""

    parent: Tensor  # [N] 0 for node 0
    elder: Tensor  # [N] the sibling before a node
    start: Tensor  # [N] the wave before which a node's weight is settled
    row: Tensor  # [N] a node's place among those with children
    children: Tensor  # [N] how many there are
    last: Tensor  # [N] the last of them
    child: Tensor  # [N, K]
    depth: Tensor  # [N]
    path: Tensor  # [N, D] the nodes from below node 0 down to each, then 0


class Scratch(NamedTuple):
    """What the waves leave for each other."""

    w: Tensor  # [B, N] float64, a node's weight
    c: Tensor  # [B, N] float64, the factor of q once the node and its elders are refused
    p: Tensor  # [B, N] float32, of each guess
    q: Tensor  # [B, N] float32, likewise; -1 where none was drawn
    guess: Tensor  # [B, N] int32, its token; -1 for none
    sums: Tensor  # [B, M, parts, 2] float32: what is left of w p, and q outside the refused guesses
    parts: int  # programs that share a row
    node: Tensor  # [B] int32, where a sequence stops
    fault: Tensor  # [B] int32


class Plan(NamedTuple):
    """A tree's tables, and which nodes' rows are read when."""

    shape: Shape
    inner: tuple[int, ...]  # nodes with children
    parents: Tensor  # [M] int32, the same
    waves: tuple[Tensor, ...]  # [W] int32 each


@cache  # a recorded step reads it as long as it is replayed: none is thrown away
def plan_of(tree: Tree, device: torch.device) -> Plan:
    """Made once for a tree and a device, so that a step can be captured in a graph."""

    def on_device(numbers: object) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=device)

    nodes = range(tree.size)
    below = [tree.children(n) for n in nodes]
    most, inner = max(map(len, below)), tree.inner
    elder, start = [-1] * tree.size, [0] * tree.size
    for parent in nodes:  # a guess is tried when its elders are refused
        for rank, child in enumerate(below[parent]):
            start[child] = start[parent] + rank
            elder[child] = below[parent][rank - 1] if rank else -1
    reads = [[n for n in inner if 0 <= wave - start[n] < len(below[n])] for wave in range(max(start) + 1)]
    shape = Shape(
        on_device([max(parent, 0) for parent in tree.parent]),
        on_device(elder),
        on_device(start),
        on_device([inner.index(n) if n in inner else -1 for n in nodes]),
        on_device([len(children) for children in below]),
        on_device([children[-1] if children else -1 for children in below]),
        on_device([[*children, *[-1] * most][:most] for children in below]),
        on_device(tree.depth),
        on_device(tree.ways),
    )
    return Plan(shape, inner, on_device(inner), tuple(on_device(wave) for wave in reads if wave))


def guess(
    logits: Tensor,
    parents: tuple[int, ...],
    tree: Tree,
    tokens: Tensor,
    controls: Controls,
    names: Names,
    summary: Summary | None,
) -> Summary:
    """See draftproof.kernels.guess."""
    batch, width, size = logits.shape
    plan, device = plan_of(tree, logits.device), logits.device
    first = plan.inner.index(parents[0])
    nodes = plan.parents[first : first + width]
    controls = controls.at(nodes)
    none = torch.zeros(batch, width - 1, dtype=torch.int64, device=device)
    _, made = launch.run(logits, 0, None, None, none, controls, None, None, Lane.DRAFT, 0, summary, None)
    rows, law = launch.rows_of(logits, 0, none, controls), launch.law_of(made, controls)
    parts, kept = launch.Plan.of(batch, width, size).parts, launch.chunks(size)
    sums = torch.empty(batch * width, kept, device=device)
    most, wide, early = plan.shape.child.shape[1], triton.next_power_of_2, launching.may_overlap(device)
    with launching.current(device):
        distinct.share[(batch * width * parts,)](
            rows, law, sums, width, parts, kept, TILE=launch.TILE, CHUNK=launch.CHUNK, EARLY=early,
            num_warps=4, launch_pdl=early,
        )  # fmt: skip
        distinct.draw[(batch * width,)](
            rows, law, names, nodes, plan.shape.child, tokens, sums, width, tree.size, most, kept,
            CHUNK=launch.CHUNK, EP=wide(kept), KP=wide(most), EARLY=early, num_warps=1, launch_pdl=early,
        )  # fmt: skip
    return made


def traverse(
    target: Tensor,
    draft: Tensor,
    tokens: Tensor,
    tree: Tree,
    controls: Controls,
    draft_controls: Controls,
    names: Names,
    drafted: Summary | None,
) -> Walked:
    """See draftproof.kernels.traverse."""
    batch, count, size = target.shape
    plan, device, tokens = plan_of(tree, target.device), target.device, tokens.contiguous()
    inner, (most, depth) = len(plan.inner), (plan.shape.child.shape[1], plan.shape.path.shape[1])
    draft_controls = draft_controls.at(plan.parents)
    draft = draft if inner else target[:, :1]  # never drawn from
    laws = launch.summarise(target, controls, tokens[:, 1:] if count > 1 else None)
    drafted = launch.summarise(draft, draft_controls) if drafted is None else drafted
    both = (
        launch.rows_of(target, 0, tokens, controls), launch.law_of(laws, controls),
        launch.rows_of(draft, 0, tokens, draft_controls), launch.law_of(drafted, draft_controls),
    )  # fmt: skip
    widest = max(map(len, plan.waves), default=1)
    walk = _scratch(batch, count, inner, launch.Plan.of(batch, widest, size).parts, device)
    out = _room(batch, depth, device)
    parts, kept, wide = launch.Plan.of(batch, 1, size).parts, launch.chunks(size), triton.next_power_of_2
    sums = torch.empty(batch, kept, device=device)
    early = launching.may_overlap(device)
    sizes = {"NP": wide(count), "PP": wide(walk.parts), "EARLY": early, "num_warps": 4, "launch_pdl": early}
    reading = {"EARLY": early, "num_warps": 4, "launch_pdl": early}
    with launching.current(device):
        for wave in range(len(plan.waves) or 1):
            waves.settle[(batch,)](*both, plan.shape, walk, wave, count, inner, depth, FIRST=wave == 0, **sizes)
            if plan.waves:
                nodes = plan.waves[wave]
                waves.sum_up[(batch * len(nodes) * walk.parts,)](
                    *both, plan.shape, walk, nodes, wave, len(nodes), count, inner, most, TILE=launch.TILE, **reading
                )
        waves.choose[(batch,)](names, plan.shape, walk, count, inner, depth, **sizes)
        waves.leave[(batch * parts,)](
            *both, plan.shape, walk, sums, parts, count, most, kept, TILE=launch.TILE, CHUNK=launch.CHUNK, **reading
        )
        waves.close[(batch,)](
            *both, names, plan.shape, walk, sums, out, count, most, depth, kept, CHUNK=launch.CHUNK, EP=wide(kept),
            DP=wide(depth + 1), EARLY=early, num_warps=4, launch_pdl=early,
        )  # fmt: skip
    return out


def _scratch(batch: int, nodes: int, inner: int, parts: int, device: torch.device) -> Scratch:
    def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    double, word = torch.float64, torch.int32
    return Scratch(
        room(batch, nodes, dtype=double), room(batch, nodes, dtype=double), room(batch, nodes), room(batch, nodes),
        room(batch, nodes, dtype=word), room(batch, inner, parts, 2), parts,
        room(batch, dtype=word), room(batch, dtype=word),
    )  # fmt: skip


def _room(batch: int, depth: int, device: torch.device) -> Walked:
    return Walked(
        torch.empty(batch, depth + 1, dtype=torch.int64, device=device),
        torch.empty(batch, dtype=torch.int32, device=device),
        torch.empty(batch, depth, dtype=torch.int64, device=device),
        torch.empty(batch, dtype=torch.int32, device=device),
    )
