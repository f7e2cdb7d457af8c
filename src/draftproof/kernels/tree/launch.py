"""Launch the kernels of a step on a tree: drafts level by level, verification wave by wave, without a host sync."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from draftproof.draft import Tree
from draftproof.kernels.chain.launch import ChainRows, summarise, summarise_rows
from draftproof.kernels.chain.plan import CHUNK, TILE, Tiling, chunk_count
from draftproof.kernels.lib import launching
from draftproof.kernels.lib.launching import next_power_of_2
from draftproof.kernels.lib.laws import LawPair, SummaryPtrs
from draftproof.kernels.lib.rows import LogitRows
from draftproof.kernels.tree import distinct, traversal
from draftproof.kernels.types import Controls, NoiseKeys, Summary, Walked


class TreeTables(NamedTuple):
    """A tree as int32 tables on a device; -1 for none."""

    parent_ptr: Tensor  # [N] 0 for node 0
    elder_ptr: Tensor  # [N] the sibling before a node
    start_ptr: Tensor  # [N] the wave before which a node's weight is known
    row_ptr: Tensor  # [N] a node's place among those with children
    children_ptr: Tensor  # [N] how many there are
    last_ptr: Tensor  # [N] the last of them
    child_ptr: Tensor  # [N, K]
    depth_ptr: Tensor  # [N]
    path_ptr: Tensor  # [N, D] the nodes from below node 0 down to each, then 0


class TraversalScratch(NamedTuple):
    """What the kernels of a traversal leave for each other."""

    w_ptr: Tensor  # [B, N] float64, a node's weight
    c_ptr: Tensor  # [B, N] float64, the factor of q once the node and its elder siblings are rejected
    p_ptr: Tensor  # [B, N] float32, of each draft token
    q_ptr: Tensor  # [B, N] float32, likewise; -1 where none was drawn
    token_ptr: Tensor  # [B, N] int32, the draft token; -1 for none
    sums_ptr: Tensor  # [B, M, parts, 2] float32: (w p - c q)+, and q outside the rejected children
    parts: int  # programs that share a row
    stop_ptr: Tensor  # [B, N] float32, the probability to stop at each node
    node_ptr: Tensor  # [B] int32, where a sequence stops
    fault_ptr: Tensor  # [B] int32

    @staticmethod
    def of(batch: int, nodes: int, inner: int, parts: int, device: torch.device) -> TraversalScratch:
        """Scratch memory for trees of `nodes` nodes, of which `inner` have children."""

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return TraversalScratch(
            w_ptr=empty(batch, nodes, dtype=torch.float64),
            c_ptr=empty(batch, nodes, dtype=torch.float64),
            p_ptr=empty(batch, nodes),
            q_ptr=empty(batch, nodes),
            token_ptr=empty(batch, nodes, dtype=torch.int32),
            sums_ptr=empty(batch, inner, parts, 2),
            parts=parts,
            stop_ptr=empty(batch, nodes),
            node_ptr=empty(batch, dtype=torch.int32),
            fault_ptr=empty(batch, dtype=torch.int32),
        )


class TreePlan(NamedTuple):
    """A tree's tables, and which nodes' rows each wave reads."""

    tables: TreeTables
    inner: tuple[int, ...]  # nodes with children
    parents: Tensor  # [M] int32, the same
    waves: tuple[Tensor, ...]  # [W] int32 each

    @property
    def most_children(self) -> int:
        """The largest number of children of a node."""
        return self.tables.child_ptr.shape[1]

    @property
    def depth(self) -> int:
        """The depth of the deepest node."""
        return self.tables.path_ptr.shape[1]


@cache  # CUDA graphs read the tables whenever they are replayed: none is ever freed
def plan_of(tree: Tree, device: torch.device) -> TreePlan:
    """The plan for a tree, made once for each device, so that a step can be captured in a CUDA graph."""

    def on_device(numbers: object) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=device)

    nodes = range(tree.size)
    below = [tree.children(n) for n in nodes]
    most, inner = max(map(len, below)), tree.inner
    elder, start = [-1] * tree.size, [0] * tree.size
    for parent in nodes:  # a child is tried once its elder siblings are rejected
        for rank, child in enumerate(below[parent]):
            start[child] = start[parent] + rank
            elder[child] = below[parent][rank - 1] if rank else -1
    reads = [[n for n in inner if 0 <= wave - start[n] < len(below[n])] for wave in range(max(start) + 1)]
    tables = TreeTables(
        parent_ptr=on_device([max(parent, 0) for parent in tree.parent]),
        elder_ptr=on_device(elder),
        start_ptr=on_device(start),
        row_ptr=on_device([inner.index(n) if n in inner else -1 for n in nodes]),
        children_ptr=on_device([len(children) for children in below]),
        last_ptr=on_device([children[-1] if children else -1 for children in below]),
        child_ptr=on_device([[*children, *[-1] * most][:most] for children in below]),
        depth_ptr=on_device(tree.depth),
        path_ptr=on_device(tree.ways),
    )
    return TreePlan(tables, inner, on_device(inner), tuple(on_device(wave) for wave in reads if wave))


def guess(
    logits: Tensor,
    parents: tuple[int, ...],
    tree: Tree,
    tokens: Tensor,
    controls: Controls,
    noise: NoiseKeys,
    summary: Summary | None,
) -> Summary:
    """See draftproof.kernels.guess."""
    (batch, width, vocabulary), device = logits.shape, logits.device
    plan = plan_of(tree, device)
    first = plan.inner.index(parents[0])
    nodes = plan.parents[first : first + width]
    controls = controls.at(nodes)
    no_drafts = torch.zeros(batch, width - 1, dtype=torch.int64, device=device)  # every row is summarised
    summary = summarise_rows(ChainRows(logits, no_drafts, controls), summary=summary)
    rows, laws = LogitRows.of(logits, no_drafts, controls), SummaryPtrs.of(summary, controls)
    parts, chunks = Tiling.of(batch, width, vocabulary).parts, chunk_count(vocabulary)
    sums = torch.empty(batch * width, chunks, device=device)
    wide, pdl = next_power_of_2, launching.may_overlap(device)
    with launching.current(device):
        distinct.sum_law[(batch * width * parts,)](
            rows, laws, sums, width, parts, chunks, TILE=TILE, CHUNK=CHUNK, PDL=pdl, num_warps=4, launch_pdl=pdl
        )
        distinct.draw_children[(batch * width,)](
            rows, laws, noise, nodes, plan.tables.child_ptr, tokens, sums, width, tree.size, plan.most_children, chunks,
            CHUNK=CHUNK, BLOCK_CHUNKS=wide(chunks), BLOCK_K=wide(plan.most_children), PDL=pdl,
            num_warps=1, launch_pdl=pdl,
        )  # fmt: skip
    return summary


def traverse(
    target: Tensor,
    draft: Tensor,
    tokens: Tensor,
    tree: Tree,
    controls: Controls,
    draft_controls: Controls,
    noise: NoiseKeys,
    drafted: Summary | None,
) -> Walked:
    """See draftproof.kernels.traverse."""
    (batch, count, vocabulary), device = target.shape, target.device
    plan, tokens = plan_of(tree, device), tokens.contiguous()
    inner, most, depth = len(plan.inner), plan.most_children, plan.depth
    draft_controls = draft_controls.at(plan.parents)
    draft = draft if inner else target[:, :1]  # never drawn from
    laws = summarise(target, controls, tokens[:, 1:] if count > 1 else None)
    drafted = summarise(draft, draft_controls) if drafted is None else drafted
    pair = LawPair(
        rows=LogitRows.of(target, tokens, controls),
        laws=SummaryPtrs.of(laws, controls),
        draft_rows=LogitRows.of(draft, tokens, draft_controls),
        draft_laws=SummaryPtrs.of(drafted, draft_controls),
    )
    widest = max(map(len, plan.waves), default=1)
    scratch = TraversalScratch.of(batch, count, inner, Tiling.of(batch, widest, vocabulary).parts, device)
    out = _empty_outcome(batch, depth, scratch.stop_ptr)
    parts, chunks = Tiling.of(batch, 1, vocabulary).parts, chunk_count(vocabulary)
    sums = torch.empty(batch, chunks, device=device)
    wide, pdl = next_power_of_2, launching.may_overlap(device)
    options = {"PDL": pdl, "num_warps": 4, "launch_pdl": pdl}
    blocks = {"BLOCK_N": wide(count), "BLOCK_PARTS": wide(scratch.parts)}
    with launching.current(device):
        for wave in range(len(plan.waves) or 1):
            traversal.update_weights[(batch,)](
                pair, plan.tables, scratch, wave, count, inner, depth, FIRST=wave == 0, **blocks, **options
            )
            if plan.waves:
                nodes = plan.waves[wave]
                traversal.sum_wave[(batch * len(nodes) * scratch.parts,)](
                    pair, plan.tables, scratch, nodes, wave, len(nodes), count, inner, most, TILE=TILE, **options
                )
        traversal.choose_node[(batch,)](noise, plan.tables, scratch, count, inner, depth, **blocks, **options)
        traversal.sum_residual[(batch * parts,)](
            pair, plan.tables, scratch, sums, parts, count, most, chunks, TILE=TILE, CHUNK=CHUNK, **options
        )
        traversal.draw_token[(batch,)](
            pair, noise, plan.tables, scratch, sums, out, count, most, depth, chunks,
            CHUNK=CHUNK, BLOCK_CHUNKS=wide(chunks), BLOCK_D=wide(depth + 1), **options,
        )  # fmt: skip
    return out


def _empty_outcome(batch: int, depth: int, stop: Tensor) -> Walked:
    device = stop.device
    return Walked(
        torch.empty(batch, depth + 1, dtype=torch.int64, device=device),
        torch.empty(batch, dtype=torch.int32, device=device),
        torch.empty(batch, depth, dtype=torch.int64, device=device),
        torch.empty(batch, dtype=torch.int32, device=device),
        stop,
    )
