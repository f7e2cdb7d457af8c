"""Launch the kernels of a step on a chain: first the laws of its rows, then the decision and the token.

`summarise_rows` is the first half alone; `sample` and `verify` are both. What is launched is planned beforehand
(`plan`), and nothing here waits for the device, so that calls can be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from draftproof.kernels.chain.decide import decide
from draftproof.kernels.chain.emit import emit
from draftproof.kernels.chain.measure import measure
from draftproof.kernels.chain.plan import CHUNK, TILE, LaunchPlan, edits_scores
from draftproof.kernels.chain.residual import sum_residuals
from draftproof.kernels.chain.shortlist import verify_lists
from draftproof.kernels.chain.state import CandidateLists, ChainState, SpanStats
from draftproof.kernels.chain.truncate import LimitPtrs, truncate
from draftproof.kernels.chain.workspace import Workspace
from draftproof.kernels.lib import launching
from draftproof.kernels.lib.launching import next_power_of_2
from draftproof.kernels.lib.laws import LawPair, SummaryPtrs
from draftproof.kernels.lib.recording import launch
from draftproof.kernels.lib.rows import LogitRows, unspecialised
from draftproof.kernels.types import CREST, Controls, Emitted, NoiseKeys, Summary
from draftproof.noise import Lane

LIST_WIDTH = 64  # tokens of every list that are loaded at once


class ChainRows(NamedTuple):
    """Rows of a chain of drafts."""

    logits: Tensor  # [B, N, V]
    tokens: Tensor  # [B, K] the drafts of the chain
    controls: Controls
    node: int = 0  # of the first row, in its chain
    first_row: Tensor | None = None  # [B] as in `Ragged`


class ChainDraft(NamedTuple):
    """How the drafts of a chain were drawn, and by which rule they are verified."""

    rule: Tensor  # [B] a ChainRule each
    logits: Tensor | None  # [B, N - 1, V], None where every rule is ONEHOT
    summary: Summary | None  # of these rows
    controls: Controls
    first_row: Tensor | None = None  # [B] as in `Ragged`


class Arguments(NamedTuple):
    """What the kernels of one call are given: pointers that the plan has no use for are None."""

    pair: LawPair
    stats: SpanStats
    lists: CandidateLists
    limits: LimitPtrs
    state: ChainState


def summarise(
    logits: Tensor,  # [B, N, V]
    controls: Controls,
    tokens: Tensor | None = None,  # [B, N - 1] or [B, N]
    *,
    crest: bool = False,
    first_row: Tensor | None = None,  # [B] as in `Ragged`
) -> Summary:
    """The laws of rows; with the draft tokens only of the rows that drafts lead to."""
    batch, nodes, _ = logits.shape
    if tokens is None:
        tokens = torch.zeros(batch, nodes, dtype=torch.int64, device=logits.device)
    summary = Summary.empty(batch, nodes, logits.device, crest)
    return summarise_rows(ChainRows(logits, tokens, controls, first_row=first_row), summary=summary)


def summarise_rows(rows: ChainRows, *, summary: Summary | None = None, workspace: Workspace | None = None) -> Summary:
    """The laws of rows, into `summary`, or into the workspace's without one."""
    space = Workspace.serving(rows.logits, workspace)
    summary = space.summary if summary is None else summary
    plan = LaunchPlan.of(space.tiling, rows.logits, rows.controls)
    arguments = _arguments(plan, space, rows, summary)
    with launching.current(rows.logits.device):
        _measure(plan, arguments)
        if not plan.truncates:
            _decide(plan, arguments)  # without a decision to make, it combines the spans of each row
    return summary


def sample(
    rows: ChainRows,  # N = 1
    noise: NoiseKeys,
    index: int,
    *,
    summary: Summary | None = None,
    workspace: Workspace | None = None,
) -> tuple[Emitted, Summary]:
    """A draft token of each row by the uniform (noise, DRAFT, index); and the laws, into `summary` if given."""
    space = Workspace.serving(rows.logits, workspace)
    summary = space.summary if summary is None else summary
    plan = LaunchPlan.of(space.tiling, rows.logits, rows.controls)
    arguments = _arguments(plan, space, rows, summary, noise=noise, lane=Lane.DRAFT, index=index)
    out = _empty_outcome(plan, rows.logits.device, logprobs=False)
    with launching.current(rows.logits.device):
        _measure(plan, arguments)
        _decide_and_emit(plan, arguments, out)
    return out, summary


def verify(
    rows: ChainRows,
    noise: NoiseKeys,
    *,
    draft: ChainDraft | None = None,  # None where nothing is drafted
    workspace: Workspace | None = None,
    logprobs: bool = False,
    expected: bool = False,  # whether to return `Emitted.reach`
) -> Emitted:
    """How far each draft goes, and the token after it."""
    space = Workspace.serving(rows.logits, workspace)
    plan = LaunchPlan.of(
        space.tiling, rows.logits, rows.controls, drafted=draft is not None, draft_crest=_has_crest(draft)
    )
    out = _empty_outcome(plan, rows.logits.device, logprobs=logprobs, reach=expected and draft is not None)
    arguments = _arguments(plan, space, rows, space.summary, draft=draft, noise=noise, lane=Lane.NEXT, reach=out.reach)
    with launching.current(rows.logits.device):
        _measure(plan, arguments)
        _decide_and_emit(plan, arguments, out)
    return out


def _measure(plan: LaunchPlan, arguments: Arguments) -> None:
    """The first half: the laws of truncated rows, and statistics of the spans of others."""
    pair, stats, lists, limits, state = arguments
    options, block_best = plan.truncation, next_power_of_2(plan.groups // plan.block)
    launch(
        measure, (plan.batch * plan.measured * plan.spans,),
        pair.rows, pair.laws, pair.draft_laws, state.rule_ptr, stats, lists, limits if plan.fuse_truncation else None,
        state.overflow_ptr, plan.nodes, plan.measured, plan.spans,
        SPAN=plan.span, TILE=plan.tiling.tile, LANE=plan.group, BLOCK=plan.block, PER_SPAN=plan.crest_per_span,
        CREST=CREST, BLOCK_BEST=block_best, FEW=options.few, SWEEP=options.sweep, SHIFT=plan.unused_bits,
        GREEDY=plan.greedy, DEFER_LAST=plan.defer_last, PDL=plan.pdl,
        num_warps=4, maxnreg=options.registers if plan.fuse_truncation else None, launch_pdl=plan.pdl,
    )  # fmt: skip
    if plan.truncates and not plan.fuse_truncation:
        launch(
            truncate, (plan.batch * plan.nodes,),
            pair.rows, pair.laws, stats, lists, limits, plan.nodes, plan.spans,
            GROUP=plan.group, BLOCK=plan.block, BLOCK_SPANS=next_power_of_2(plan.spans), BLOCK_BEST=block_best,
            FEW=options.few, SWEEP=options.sweep, SHIFT=plan.unused_bits, GREEDY=plan.greedy, PDL=plan.pdl,
            num_warps=options.warps, maxnreg=options.registers, launch_pdl=plan.pdl,
        )  # fmt: skip


def _decide_and_emit(plan: LaunchPlan, arguments: Arguments, out: Emitted) -> None:
    """The second half: where each draft stops, and the token after it."""
    pair, _, lists, _, state = arguments
    wide = next_power_of_2
    if plan.shortlists:
        launch(
            verify_lists, (plan.batch,),
            pair, lists, state, out, plan.nodes, BLOCK_N=wide(plan.nodes), WIDTH=LIST_WIDTH, PDL=plan.pdl,
            num_warps=4, launch_pdl=plan.pdl,
        )  # fmt: skip
        return
    _decide(plan, arguments)
    if plan.sums:
        launch(
            sum_residuals, (plan.batch * plan.tiling.parts * plan.tiling.ranks,),
            pair, lists, state, plan.batch, plan.nodes, plan.tiling.parts, plan.chunks,
            TILE=TILE, CHUNK=CHUNK, DENSE=plan.dense, DEFER_LAST=plan.defer_last, PDL=plan.pdl,
            num_warps=4, maxnreg=128, launch_pdl=plan.pdl,
        )  # fmt: skip
    launch(
        emit, (plan.batch,),
        pair, lists, state, out, plan.nodes, plan.chunks, plan.tiling.parts,
        CHUNK=CHUNK, BLOCK_N=wide(plan.nodes), BLOCK_CHUNKS=wide(plan.chunks), BLOCK_PARTS=wide(plan.tiling.parts),
        DENSE=plan.dense, DEFER_LAST=plan.defer_last, PDL=plan.pdl,
        num_warps=8 if plan.chunks > 512 else 4, launch_pdl=plan.pdl,
    )  # fmt: skip


def _decide(plan: LaunchPlan, arguments: Arguments) -> None:
    pair, stats, _, _, state = arguments
    launch(
        decide, (plan.batch,),
        pair, stats, state, plan.nodes, plan.spans,
        BLOCK_N=next_power_of_2(plan.nodes), BLOCK_SPANS=next_power_of_2(plan.spans), CREST=CREST,
        DENSE=plan.dense, GREEDY=plan.greedy, DEFER_LAST=plan.defer_last, PDL=plan.pdl,
        num_warps=plan.decide_warps, launch_pdl=plan.pdl,
    )  # fmt: skip


def _arguments(
    plan: LaunchPlan,
    space: Workspace,
    rows: ChainRows,
    summary: Summary,
    *,
    draft: ChainDraft | None = None,
    noise: NoiseKeys | None = None,  # None where nothing is emitted
    lane: Lane = Lane.NEXT,  # of the emitted token's uniform, ...
    index: int = 0,  # ... and its index there
    reach: Tensor | None = None,  # [B, N - 1] memory for `Emitted.reach`
) -> Arguments:
    """The kernels' arguments: what the plan has no use for is None, so that it is not compiled."""
    controls, tokens = rows.controls, rows.tokens.contiguous()  # kernels take the row length for the stride
    theirs = controls if draft is None else draft.controls
    pair = LawPair(
        rows=LogitRows.of(rows.logits, tokens, controls, rows.node, rows.first_row),
        laws=SummaryPtrs.of(summary, controls),
        draft_rows=_draft_rows(draft, tokens, theirs, rows.node),
        draft_laws=SummaryPtrs.of(None if draft is None else draft.summary, theirs),
    )
    state = space.state._replace(
        rule_ptr=None if draft is None else draft.rule, noise=noise, lane=int(lane), index=unspecialised(index),
        reach_ptr=reach,
    )  # fmt: skip
    if noise is None:
        state = state._replace(decision_ptr=None)
    if noise is None or not plan.sums:
        state = state._replace(overflow_ptr=None)
    limits = LimitPtrs(controls.top_k, controls.top_p, controls.min_p)
    return Arguments(pair, _stats(plan, space.stats, rows), _lists(plan, space.lists), limits, state)


def _draft_rows(draft: ChainDraft | None, tokens: Tensor, controls: Controls, node: int) -> LogitRows:
    if draft is None:
        return LogitRows.of(None, tokens, controls, node)
    return LogitRows.of(draft.logits, tokens, controls, node, draft.first_row)


def _stats(plan: LaunchPlan, stats: SpanStats, rows: ChainRows) -> SpanStats:
    """The statistics that the plan makes use of."""
    if not plan.uses_crest:
        stats = stats._replace(height_ptr=None)
    if not plan.truncates:
        return stats._replace(group_ptr=None, block_ptr=None, share_ptr=None)
    if plan.shortlists:  # a row's top-k makes a normaliser of its own
        stats = stats._replace(norm_ptr=None)
    if not edits_scores(rows.controls):  # scores are logits, and stored in their type
        dtype = rows.logits.dtype
        stats = stats._replace(group_ptr=stats.group_ptr.view(dtype), block_ptr=stats.block_ptr.view(dtype))
    if not plan.many:
        stats = stats._replace(share_ptr=None)
    return stats if plan.block > 1 else stats._replace(block_ptr=stats.group_ptr)


def _lists(plan: LaunchPlan, lists: CandidateLists) -> CandidateLists:
    """The lists that the plan makes use of."""
    if plan.truncates:
        return lists._replace(limit=plan.groups)
    return lists._replace(groups_ptr=None, ids_ptr=None, scores_ptr=None, count_ptr=None)


def _has_crest(draft: ChainDraft | None) -> bool:
    """Whether the drafter has kept large tokens of its rows that can be used."""
    return (
        draft is not None
        and draft.summary is not None
        and draft.summary.crest is not None
        and not draft.controls.truncates
    )


def _empty_outcome(plan: LaunchPlan, device: torch.device, *, logprobs: bool, reach: bool = False) -> Emitted:
    return Emitted(
        torch.empty(plan.batch, plan.nodes, dtype=torch.int64, device=device),
        torch.empty(plan.batch, dtype=torch.int32, device=device),
        torch.empty(plan.batch, dtype=torch.int32, device=device),
        torch.empty(plan.batch, plan.nodes, dtype=torch.float32, device=device) if logprobs else None,
        torch.empty(plan.batch, plan.nodes - 1, dtype=torch.float32, device=device) if reach else None,
    )
