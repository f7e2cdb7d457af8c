"""Launches: measure; cut where rows are truncated; excess where rows are not; emit. Sizes follow from the shape."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from draftproof.kernels.cut import Lists, cut
from draftproof.kernels.device import Law, Rows, State, Stats
from draftproof.kernels.emit import emit, excess
from draftproof.kernels.measure import measure
from draftproof.kernels.types import Controls, Emitted, Names, Summary
from draftproof.noise import Lane

GROUP = 64  # tokens whose largest score is kept together
ROOM = 8192  # candidate tokens that are listed before a row is searched group by group
_SHIFT = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}  # low bits of a float32 that the type never uses


def cutting(rows: int, controls: Controls) -> tuple[int, int, int]:
    """Candidates searched and tokens swept at a time, and warps: one warp a row where rows fill the device."""
    if controls.truncates == 2:
        return 1024, 2048, 4
    return (256, 1024, 1) if rows > 512 else (512, 2048, 4)


class Plan(NamedTuple):
    """How a shape is cut into programs."""

    chunk: int  # tokens the first pass measures at a time
    chunks: int  # how many of them a program
    unit: int  # tokens the second pass sums at a time
    units: int  # how many of them a program
    warps: int = 4

    @staticmethod
    def of(rows: int, size: int) -> Plan:
        """Several chunks a program where there are many rows, one where a few rows must fill the device."""
        small = max(GROUP, triton.next_power_of_2(size))
        if rows * size < 1 << 23:
            return Plan(min(2048, small), 1, min(2048, small), 1)
        return Plan(min(4096, small), 4, min(2048, small), 4)


class Workspace(NamedTuple):
    """Scratch memory for a shape. `arrived` is zero between calls, so one workspace serves calls in one stream."""

    plan: Plan
    stats: Stats
    state: State
    lists: Lists
    summary: Summary

    @staticmethod
    def of(batch: int, nodes: int, size: int, device: torch.device, plan: Plan | None = None) -> Workspace:
        """Scratch for logits [batch, nodes, size]."""
        plan = Plan.of(batch * nodes, size) if plan is None else plan
        rows = batch * nodes
        chunks, units = triton.cdiv(size, plan.chunk), triton.cdiv(size, plan.unit)
        limit = chunks * plan.chunk // GROUP

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        word, wide = torch.int32, torch.float64
        parts = (rows, chunks)
        stats = Stats(room(*parts), room(*parts), room(*parts, dtype=word), room(rows, limit))
        stop, low, high, length, fault = (room(batch, dtype=word) for _ in range(5))
        weight, chance = torch.zeros(2, rows, dtype=wide, device=device)  # read also where no rule has written
        state = State(
            None, None, None, None, 0, 0, stop, low, high, length, fault, weight, chance, room(rows, units),
            torch.zeros(batch, dtype=word, device=device),
        )  # fmt: skip
        listed = min(ROOM, size)
        lists = Lists(
            room(rows, limit, dtype=word), limit, room(rows, listed, dtype=word), listed, room(rows, dtype=word)
        )
        return Workspace(plan, stats, state, lists, Summary.empty(batch, nodes, device))


def run(
    target: Tensor,
    node: int,
    draft: Tensor | None,
    draft_law: Summary | None,
    tokens: Tensor,
    controls: Controls,
    rule: Tensor | None,
    names: Names | None,
    lane: Lane,
    index: int,
    summary: Summary | None,
    workspace: Workspace | None,
) -> tuple[Emitted | None, Summary]:
    """The kernels over logits [B, N, V]. Without names nothing is emitted: the rows are only summarised."""
    batch, nodes, size = target.shape
    space = workspace if workspace is not None else Workspace.of(batch, nodes, size, target.device)
    summary = summary if summary is not None else space.summary
    plan = space.plan
    tokens = tokens.contiguous()  # the kernels take the row length for the stride; a drafter passes a slice
    rows, law = _rows(target, node, tokens, controls), _law(summary, controls)
    draft_rows, known = _rows(draft, node, tokens, controls), _law(draft_law, controls)
    stats = space.stats if controls.truncates else space.stats._replace(group=None)
    lists = space.lists if controls.truncates else space.lists._replace(count=None)
    state = space.state._replace(rule=rule, lane=int(lane), index=index)
    if names is not None:
        state = state._replace(seed=names.seed, request=names.request, step=names.step)
    chunks, units = triton.cdiv(size, plan.chunk), triton.cdiv(size, plan.unit)
    padded, splits = triton.next_power_of_2(nodes), triton.next_power_of_2(chunks)
    with _on(target.device):
        programs = triton.cdiv(chunks, plan.chunks)
        measure[(programs * batch * nodes,)](
            rows, law, draft_rows, known, stats, state, nodes, chunks, programs,
            C=plan.chunk, CHUNKS=plan.chunks, STAGES=1 if plan.chunks == 1 else 3, GROUP=GROUP, NP=padded, SP=splits,
            GREEDY=controls.greedy, num_warps=plan.warps,
        )  # fmt: skip
        if controls.truncates:
            edited = controls.bias is not None or controls.penalties is not None
            tile, sweep, warps = cutting(batch * nodes, controls)
            cut[(batch * nodes,)](
                rows, law, draft_rows, known, stats, state, lists,
                controls.top_k, controls.top_p, controls.min_p, nodes, chunks,
                GROUP=GROUP, NP=padded, SP=splits, GP=triton.next_power_of_2(lists.limit), TILE=tile, SWEEP=sweep,
                SHIFT=0 if edited else _SHIFT[target.dtype], GREEDY=controls.greedy, num_warps=warps,
            )  # fmt: skip
        if names is None:
            return None, summary
        summed = rule is not None and draft is not None and controls.whole
        if summed:
            excess[(batch, triton.cdiv(units, plan.units))](
                rows, law, draft_rows, known, stats, lists, state, nodes, units, lists.limit,
                GROUP=GROUP, UNIT=plan.unit, UNITS=plan.units, num_warps=plan.warps,
            )  # fmt: skip
        out = Emitted(
            torch.empty(batch, nodes, dtype=torch.int64, device=target.device),
            torch.empty(batch, dtype=torch.int32, device=target.device),
            torch.empty(batch, nodes, dtype=torch.float32, device=target.device),
            torch.empty(batch, dtype=torch.int32, device=target.device),
        )
        emit[(batch,)](
            rows, law, draft_rows, known, stats, lists, state, *out, nodes, chunks, units, lists.limit,
            C=plan.chunk, GROUP=GROUP, NP=padded, EP=triton.next_power_of_2(max(chunks, units)), UNIT=plan.unit,
            BLOCK=min(512, plan.unit) if controls.truncates == 1 else plan.unit, SUMMED=summed, num_warps=4,
        )  # fmt: skip
    return out, summary


def _rows(logits: Tensor | None, node: int, tokens: Tensor, controls: Controls) -> Rows:
    allowed = controls.allowed
    nodes, words = (0, 0) if allowed is None else (allowed.shape[1], allowed.shape[2])
    stride_b, stride_n, size = (0, 0, 0) if logits is None else (logits.stride(0), logits.stride(1), logits.shape[-1])
    return Rows(
        logits, stride_b, stride_n, size, node, tokens, tokens.shape[1],
        controls.temperature, controls.bias, controls.penalties, controls.seen, controls.made, allowed, nodes, words,
    )  # fmt: skip


def _law(summary: Summary | None, controls: Controls) -> Law:
    if summary is None:
        return Law(None, None, None, None, 0)
    cutoff = summary.cutoff if controls.truncates else None
    first = summary.first if controls.truncates or controls.greedy else None
    return Law(summary.peak, summary.scale, cutoff, first, summary.peak.stride(0))


def _on(device: torch.device) -> Any:
    """Triton launches on the current device; on the CPU (its interpreter) there is none to choose."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
