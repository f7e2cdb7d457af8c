"""The launches of a step: sizes follow from the shape, scratch memory from a workspace that many calls share."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from draftproof.errors import DraftproofError
from draftproof.kernels.chain.decide import decide
from draftproof.kernels.chain.emit import emit
from draftproof.kernels.chain.excess import excess
from draftproof.kernels.chain.measure import measure
from draftproof.kernels.chain.shortlist import brief
from draftproof.kernels.chain.truncate import cut
from draftproof.kernels.lib import launching
from draftproof.kernels.lib.rows import Law, Lists, Rows, State, Stats, dull
from draftproof.kernels.types import CREST, Controls, Emitted, Names, Summary
from draftproof.noise import Lane

GROUPS = 2048  # of a row, each of which keeps its largest score
TILE = 2048  # tokens whose excess is summed at a time, ...
CHUNK = 256  # ... in chunks whose sums are kept
PROCESSORS = 132  # of an H200; others differ by less than would matter
FINE = 32  # tokens of a group where few tokens stay, ...
BLOCKS = 256  # ... and at least so many blocks of such groups has a row, or no blocks
ROOM = 8192  # candidate tokens that are listed before a row is searched group by group
_SHIFT = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}  # low bits of a float32 that the type never uses


class Plan(NamedTuple):
    """How a shape is cut into programs."""

    span: int  # tokens that a program measures, ...
    tile: int  # ... so many at a time
    group: int  # tokens whose largest score is kept together
    parts: int  # programs that share the excess of a row, ...
    ranks: int  # ... and so many the rows of a sequence, of which mostly one is wanted, sometimes all
    whole: bool = False  # whether a row that is truncated to a few tokens is one span, cut by the program that reads it

    @staticmethod
    def of(batch: int, nodes: int, size: int) -> Plan:
        """Programs grow with the root of the work: fewer have to begin, and there are still enough for an even end."""
        root = math.sqrt(batch * nodes * size)
        group = min(max(32, triton.next_power_of_2(triton.cdiv(size, GROUPS))), 64)
        span = min(_power(9 * root, 1024, 16384), max(group, triton.next_power_of_2(size)))
        parts = triton.cdiv(size, _power(2.3 * root, TILE, 32768))
        ranks = nodes if batch * nodes <= PROCESSORS else min(2, nodes)
        whole = 2 * PROCESSORS <= batch * nodes <= 6 * PROCESSORS
        return Plan(span, min(span, 4096), group, parts, ranks, whole)


class Cutting(NamedTuple):
    """How a row is cut: one program's warps and registers, tokens that it looks through and compares at a time."""

    warps: int
    registers: int
    sweep: int
    few: int

    @staticmethod
    def of(rows: int, many: bool, whole: bool) -> Cutting:
        """Several warps are the fastest for a row, one warp the cheapest. `many`: hundreds of tokens may stay."""
        if many:
            return Cutting(8 if rows <= PROCESSORS else 4, 128, 2048, 512)
        return Cutting(4, 128, 2048, 128) if whole or rows <= PROCESSORS else Cutting(1, 168, 1024, 128)


def _power(number: float, least: int, most: int) -> int:
    """The power of two nearest to a number, within bounds."""
    return int(min(max(2 ** round(math.log2(number + 1)), least), most))


class Workspace(NamedTuple):
    """Scratch memory for a shape; one serves many calls in one stream."""

    shape: tuple[int, int, int]
    plan: Plan
    stats: Stats
    state: State
    lists: Lists
    summary: Summary

    @staticmethod
    def of(batch: int, nodes: int, size: int, device: torch.device, plan: Plan | None = None) -> Workspace:
        """Scratch for logits [batch, nodes, size]."""
        plan = Plan.of(batch, nodes, size) if plan is None else plan
        rows, spans = batch * nodes, triton.cdiv(size, plan.span)
        limit = triton.cdiv(size, plan.tile) * plan.tile // min(plan.group, FINE)

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        word, parts = torch.int32, (rows, spans)
        stats = Stats(
            room(*parts), room(*parts), room(*parts, dtype=word), room(rows, limit), room(rows, limit),
            room(rows, limit), room(rows, CREST),
        )  # fmt: skip
        state = State(
            None, None, None, None, 0, 0, room(batch, 8, dtype=word), room(rows, dtype=torch.float64), room(rows),
            room(rows, 16, dtype=word), room(rows, chunks(size)), room(rows, plan.parts), room(batch, chunks(size)),
            room(1, dtype=word),
        )  # fmt: skip
        listed = min(ROOM, size)
        lists = Lists(
            room(rows, limit, dtype=word), limit,
            room(rows, listed, dtype=word), room(rows, listed), listed, room(rows, dtype=word),
        )  # fmt: skip
        return Workspace((batch, nodes, size), plan, stats, state, lists, Summary.empty(batch, nodes, device))


def run(
    target: Tensor,  # [B, N, V]
    node: int,  # of the first row, in its chain
    draft: Tensor | None,  # [B, N - 1, V]
    draft_law: Summary | None,  # of the draft rows
    tokens: Tensor,  # [B, K] the drafts of the chain
    controls: Controls,
    rule: Tensor | None,  # [B], None where nothing is drafted
    names: Names | None,
    lane: Lane,  # of the emitted token's uniform, ...
    index: int,  # ... and its place there
    summary: Summary | None,  # room for the rows' laws; the workspace's if there is none
    workspace: Workspace | None,  # allocated if there is none
    draft_controls: Controls | None = None,
    logprobs: bool = False,
) -> tuple[Emitted | None, Summary]:
    """The kernels over logits [B, N, V]. Without names nothing is emitted: the rows are only summarised."""
    batch, nodes, size = target.shape
    space = workspace if workspace is not None else Workspace.of(batch, nodes, size, target.device)
    if space.shape != target.shape or space.summary.shift.device != target.device:
        raise DraftproofError(
            f"a workspace for logits {[*space.shape]} on {space.summary.shift.device} does not serve "
            f"{[*target.shape]} on {target.device}"
        )
    summary = summary if summary is not None else space.summary
    plan = space.plan
    tokens = tokens.contiguous()  # the kernel takes the row length for the stride; a drafter passes a slice
    # A law that keeps every token can be drawn from in the pass that makes it, so the last row is read then, if at all
    lazy = not (rule is None or controls.truncates or controls.greedy)
    stats, lists, width, block = _grouped(space, size, target.dtype, controls)
    state = space.state._replace(rule=rule, lane=int(lane), index=dull(index))
    summed = controls.whole or controls.truncates > 1  # else every row that is drawn from has a list
    short = controls.truncates > 0 and not summed
    if short:  # a row's top-k makes a normaliser of its own
        stats = stats._replace(norm=None)
    if not summed or names is None:
        state = state._replace(work=None)
    out = None
    if names is None:
        state = state._replace(facts=None)
    else:
        state = state._replace(seed=names.seed, request=names.request, step=names.step)
        out = _room(batch, nodes, logprobs, target.device)
    rows, law = rows_of(target, node, tokens, controls), law_of(summary, controls)
    if rule is not None:
        law = law._replace(crest=None, height=None)  # of drafters
    wide, whole = triton.next_power_of_2, short and plan.whole
    span = max(plan.tile, wide(size)) if whole else plan.span
    spans, limits = triton.cdiv(size, span), (controls.top_k, controls.top_p, controls.min_p)
    greedy, early = controls.greedy, launching.may_overlap(target.device)
    theirs = controls if draft_controls is None else draft_controls
    laws = rows, law, rows_of(draft, node, tokens, theirs), law_of(draft_law, theirs)
    if short or laws[3].crest is None:
        stats = stats._replace(height=None)
    kept, spacious = state.sums.shape[1], plan.ranks == nodes
    way = Cutting.of(batch * nodes, controls.truncates > 1, whole)
    shift, best = 0 if _edits(controls) else _SHIFT[target.dtype], wide(lists.limit // block)
    with launching.current(target.device):
        measure[(batch * (nodes - lazy) * spans,)](
            rows, law, laws[3], rule, stats, lists, limits if whole else None, state.work, nodes, nodes - lazy, spans,
            SPAN=span, TILE=plan.tile, LANE=width, BLOCK=block, W=_share(spans, plan.tile // width), C=CREST, BP=best,
            FEW=way.few, SWEEP=way.sweep, SHIFT=shift, GREEDY=greedy, LAZY=lazy, EARLY=early,
            num_warps=4, maxnreg=way.registers if whole else None,
        )  # fmt: skip
        if controls.truncates and not whole:
            cut[(batch * nodes,)](
                rows, law, stats, lists, limits, nodes, spans, GROUP=width, BLOCK=block, SP=wide(spans), BP=best,
                FEW=way.few, SWEEP=way.sweep, SHIFT=shift, GREEDY=greedy, EARLY=early,
                num_warps=way.warps, maxnreg=way.registers, launch_pdl=early,
            )  # fmt: skip
        if out is not None and short:
            brief[(batch,)](
                *laws, lists, state, out, nodes, NP=wide(nodes), WIDTH=64, EARLY=early, num_warps=4, launch_pdl=early
            )
        elif out is not None or not controls.truncates:
            decide[(batch,)](
                *laws, stats, state, nodes, spans, NP=wide(nodes), SP=wide(spans), C=CREST, SPACIOUS=spacious,
                GREEDY=greedy, LAZY=lazy, EARLY=early,
                num_warps=4 if stats.height is not None or batch * nodes <= PROCESSORS else 1, launch_pdl=early,
            )  # fmt: skip
        if out is not None and summed:
            excess[(batch * plan.parts * plan.ranks,)](
                *laws, lists, state, batch, nodes, plan.parts, kept, TILE=TILE, CHUNK=CHUNK, SPACIOUS=spacious,
                LAZY=lazy, EARLY=early, num_warps=4, maxnreg=128, launch_pdl=early,
            )  # fmt: skip
        if out is not None and not short:
            emit[(batch,)](
                *laws, lists, state, out, nodes, kept, plan.parts, CHUNK=CHUNK, NP=wide(nodes), EP=wide(kept),
                QP=wide(plan.parts), SPACIOUS=spacious, LAZY=lazy, EARLY=early,
                num_warps=8 if kept > 512 else 4, launch_pdl=early,
            )  # fmt: skip
    return out, summary


def summarise(logits: Tensor, controls: Controls, tokens: Tensor | None = None, crest: bool = False) -> Summary:
    """The laws of rows [B, N, V]. With the drafts' tokens [B, N - 1] or [B, N] only of those that a draft leads to."""
    batch, nodes, _ = logits.shape
    if tokens is None:
        tokens = torch.zeros(batch, nodes, dtype=torch.int64, device=logits.device)
    kept = Summary.empty(batch, nodes, logits.device, crest)
    return run(logits, 0, None, None, tokens, controls, None, None, Lane.NEXT, 0, kept, None)[1]


def _grouped(space: Workspace, size: int, dtype: torch.dtype, controls: Controls) -> tuple[Stats, Lists, int, int]:
    """Statistics and lists as the controls want them; how many tokens make a group and how many groups a block, of both
    of which the largest score is kept."""
    plan, stats, lists = space.plan, space.stats, space.lists
    if not controls.truncates:
        return stats._replace(group=None, share=None), lists._replace(count=None), min(8, plan.tile), 1
    if not _edits(controls):  # scores are logits, and kept as such
        stats = stats._replace(group=stats.group.view(dtype), block=stats.block.view(dtype))
    few = controls.truncates < 2
    group = min(plan.group, FINE) if few else plan.group
    limit = triton.cdiv(size, plan.tile) * plan.tile // group
    # blocks are listed for a while where tokens will be, so there must be room for all of them
    block = next((wide for wide in (8, 4) if few and wide * BLOCKS <= limit <= wide * ROOM), 1)
    if few:
        stats = stats._replace(share=None)
    if block == 1:
        stats = stats._replace(block=stats.group)
    return stats, lists._replace(limit=limit), group, block


def _share(spans: int, lanes: int) -> int:
    """How many of its large tokens a span names, a power of two, so that a row names CREST or fewer."""
    return int(min(2 ** int(math.log2(max(1, CREST // spans))), lanes))


def _edits(controls: Controls) -> bool:
    """Whether scores are other numbers than the logits."""
    return controls.bias is not None or controls.penalties is not None


def _room(batch: int, nodes: int, logprobs: bool, device: torch.device) -> Emitted:
    return Emitted(
        torch.empty(batch, nodes, dtype=torch.int64, device=device),
        torch.empty(batch, dtype=torch.int32, device=device),
        torch.empty(batch, dtype=torch.int32, device=device),
        torch.empty(batch, nodes, dtype=torch.float32, device=device) if logprobs else None,
    )


def chunks(size: int) -> int:
    """How many sums a row of so many tokens has."""
    return int(triton.cdiv(size, TILE)) * TILE // CHUNK


def rows_of(logits: Tensor | None, node: int, tokens: Tensor, controls: Controls) -> Rows:
    """Rows of logits and what edits them, for a kernel."""
    allowed = controls.allowed
    nodes, words = (0, 0) if allowed is None else (allowed.shape[1], allowed.shape[2])
    stride_b, stride_n, size = (0, 0, 0) if logits is None else (logits.stride(0), logits.stride(1), logits.shape[-1])
    return Rows(
        logits, stride_b, stride_n, size, dull(node), tokens, dull(tokens.shape[1]),
        controls.temperature, controls.bias, controls.penalties, controls.seen, controls.made, allowed, nodes, words,
    )  # fmt: skip


def law_of(summary: Summary | None, controls: Controls) -> Law:
    """Summaries of rows, for a kernel."""
    if summary is None:
        return Law(None, None, None, None, None, None, 0)
    cutoff = summary.cutoff if controls.truncates else None
    first = summary.first if controls.truncates or controls.greedy else None
    crest, height = (None, None) if controls.truncates else (summary.crest, summary.height)
    return Law(summary.shift, summary.scale, cutoff, first, crest, height, summary.shift.stride(0))
