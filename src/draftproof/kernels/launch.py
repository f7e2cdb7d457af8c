"""The launch of a step: sizes follow from the shape, scratch memory from a workspace that many calls share."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from draftproof.kernels.device import Law, Lists, Rows, State, Stats, dull
from draftproof.kernels.step import step
from draftproof.kernels.types import Controls, Emitted, Names, Summary
from draftproof.noise import Lane

GROUP = 64  # tokens whose largest score is kept together
ROOM = 8192  # candidate tokens that are listed before a row is searched group by group
_SHIFT = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}  # low bits of a float32 that the type never uses


class Plan(NamedTuple):
    """How a shape is cut into programs."""

    span: int  # tokens that a program measures, ...
    tile: int  # ... so many at a time
    unit: int  # tokens that a program sums, ...
    half: int  # ... so many at a time, of p and of q
    split: bool  # whether the work is enough for several launches

    @staticmethod
    def of(rows: int, size: int) -> Plan:
        """Programs grow with the root of the work: fewer have to begin, and there are still enough for an even end."""
        span = 2 ** round(math.log2(2.3 * math.sqrt(rows * size) + 1))
        span = min(max(span, 1024), 32768, max(GROUP, triton.next_power_of_2(size)))
        unit = min(max(span // 2, 2048), 8192, max(GROUP, triton.next_power_of_2(size)))
        return Plan(span, min(span, 4096), unit, min(unit, 2048), rows * size >= 1 << 23)


class Workspace(NamedTuple):
    """Scratch memory for a shape. Its counters are zero between calls, so one workspace serves calls in one stream."""

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
        spans, units = triton.cdiv(size, plan.span), triton.cdiv(size, plan.unit)
        limit = triton.cdiv(size, plan.tile) * plan.tile // GROUP

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        word, wide = torch.int32, torch.float64
        parts = (rows, spans)
        stats = Stats(room(*parts), room(*parts), room(*parts, dtype=word), room(rows, limit), room(rows, limit))
        weight, chance = torch.zeros(2, rows, dtype=wide, device=device)  # read also where no rule has written
        ticket, measured, arrived, decided, summed = (
            torch.zeros(count, dtype=word, device=device) for count in (1, rows, batch, batch, batch)
        )
        state = State(
            None, None, None, None, 0, 0, room(batch, 8, dtype=word), weight, chance, room(rows, units),
            ticket, measured, arrived, decided, summed,
        )  # fmt: skip
        listed = min(ROOM, size)
        lists = Lists(
            room(rows, limit, dtype=word), limit,
            room(rows, listed, dtype=word), room(rows, listed), listed, room(rows, dtype=word),
        )  # fmt: skip
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
    draft_controls: Controls | None = None,
) -> tuple[Emitted | None, Summary]:
    """The kernel over logits [B, N, V]. Without names nothing is emitted: the rows are only summarised."""
    batch, nodes, size = target.shape
    space = workspace if workspace is not None else Workspace.of(batch, nodes, size, target.device)
    summary = summary if summary is not None else space.summary
    plan = space.plan
    theirs = controls if draft_controls is None else draft_controls
    tokens = tokens.contiguous()  # the kernel takes the row length for the stride; a drafter passes a slice
    stats, lists = space.stats, space.lists
    if controls.truncates < 2:
        stats = stats._replace(share=None)
    if not controls.truncates:
        stats, lists = stats._replace(group=None), lists._replace(count=None)
    state = space.state._replace(rule=rule, lane=int(lane), index=dull(index))
    out = None
    if names is not None:
        state = state._replace(seed=names.seed, request=names.request, step=names.step)
        out = _room(batch, nodes, target.device)
    spans, units = triton.cdiv(size, plan.span), triton.cdiv(size, plan.unit)
    summed = names is not None and rule is not None and draft is not None and (controls.whole or controls.truncates > 1)
    edited = controls.bias is not None or controls.penalties is not None
    many = controls.truncates > 1
    with on(target.device):
        for measures, decides, emits in _launches(plan.split, bool(controls.truncates), out is not None):
            first = nodes * spans if measures else nodes if decides else 0
            then = units if emits and summed else int(emits and not decides)
            step[(batch * (first + then),)](
                _rows(target, node, tokens, controls), _law(summary, controls),
                _rows(draft, node, tokens, theirs), _law(draft_law, theirs), stats, lists, state,
                (controls.top_k, controls.top_p, controls.min_p), out if out is not None else (None,) * 4,
                batch, nodes, spans, units, first, then, lists.limit,
                SPAN=plan.span, TILE=plan.tile, UNIT=plan.unit, HALF=plan.half, GROUP=GROUP,
                LANE=GROUP if controls.truncates else min(8, plan.tile),
                NP=triton.next_power_of_2(nodes), SP=triton.next_power_of_2(spans),
                EP=triton.next_power_of_2(max(spans, units)), GP=triton.next_power_of_2(lists.limit),
                FEW=1024 if many else 512, SWEEP=2048, BLOCK=min(512 if controls.truncates == 1 else 1024, plan.unit),
                SHIFT=0 if edited else _SHIFT[target.dtype], GREEDY=controls.greedy, SUMMED=summed,
                MEASURES=measures, DECIDES=decides, EMITS=emits, num_warps=4,
            )  # fmt: skip
    return out, summary


def _launches(split: bool, truncated: bool, emits: bool) -> list[tuple[bool, bool, bool]]:
    """What each launch does: measure, decide, emit. To cut rows takes registers that would slow the reading down."""
    if not split:
        return [(True, True, emits)]
    if truncated:
        return [(True, False, False), (False, True, emits)]
    return [(True, True, False), (False, False, True)] if emits else [(True, True, False)]


def _room(batch: int, nodes: int, device: torch.device) -> Emitted:
    return Emitted(
        torch.empty(batch, nodes, dtype=torch.int64, device=device),
        torch.empty(batch, dtype=torch.int32, device=device),
        torch.empty(batch, nodes, dtype=torch.float32, device=device),
        torch.empty(batch, dtype=torch.int32, device=device),
    )


def _rows(logits: Tensor | None, node: int, tokens: Tensor, controls: Controls) -> Rows:
    allowed = controls.allowed
    nodes, words = (0, 0) if allowed is None else (allowed.shape[1], allowed.shape[2])
    stride_b, stride_n, size = (0, 0, 0) if logits is None else (logits.stride(0), logits.stride(1), logits.shape[-1])
    return Rows(
        logits, stride_b, stride_n, size, dull(node), tokens, dull(tokens.shape[1]),
        controls.temperature, controls.bias, controls.penalties, controls.seen, controls.made, allowed, nodes, words,
    )  # fmt: skip


def _law(summary: Summary | None, controls: Controls) -> Law:
    if summary is None:
        return Law(None, None, None, None, 0)
    cutoff = summary.cutoff if controls.truncates else None
    first = summary.first if controls.truncates or controls.greedy else None
    return Law(summary.shift, summary.scale, cutoff, first, summary.shift.stride(0))


def on(device: torch.device) -> Any:
    """Triton launches on the current device; on the CPU (its interpreter) there is none to choose."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
