# mypy: ignore-errors
"""Gather what a step needs of its requests, one program for each."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from draftproof.kernels.lib import launching
from draftproof.kernels.lib.launching import next_power_of_2
from draftproof.kernels.lib.pdl import launch_dependents
from draftproof.kernels.lib.recording import launch
from draftproof.kernels.types import CREST


def gather(
    columns: tuple[Tensor, ...],  # by slot [M]; these and the step's have the names that are read and written below
    laws: tuple[Tensor, ...] | None,  # by slot and draft token [M, depth], as `slots.draw` leaves them
    step: tuple[Any, ...],  # by request [B]; tokens [B, K]; drafted [B, K] where there are laws
    slot: Tensor,  # [B]
    starts: Tensor,  # [B + 1] where each request's rows begin
    position: Tensor,  # [R]
    sampled: Tensor,  # [R] the token that each row was read with
    *,
    depth: int,  # rows of draft tokens of each slot
    vocabulary: int,
    truncates: bool,  # whether top-k, top-p and min-p are needed
    processed: bool,  # whether the target's rows have been divided by the temperature
) -> None:
    """Controls, seeds and rules by request instead of by slot, the places of its rows, and its draft tokens.

    The law of a draft token that was drawn at another position than its row's was left by an earlier draft. It is
    marked as missing, so that the draft ends there, whatever the token is.
    """
    drafts = step.tokens.shape[1]
    with launching.current(slot.device):
        launch(
            gather_request, (len(slot),),
            columns, laws, step, slot, starts, position, sampled, drafts, depth, vocabulary,
            BLOCK=next_power_of_2(max(1, drafts)), CREST=CREST, TRUNCATES=truncates, PROCESSED=processed,
            PDL=launching.may_overlap(slot.device), num_warps=1,
        )  # fmt: skip


@triton.jit(do_not_specialize=["K", "depth", "vocabulary"])
def gather_request(
    columns, laws, step, slot_ptr, starts_ptr, position_ptr, sampled_ptr, K, depth, vocabulary,
    BLOCK: tl.constexpr, CREST: tl.constexpr, TRUNCATES: tl.constexpr, PROCESSED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """What one request needs."""
    launch_dependents(PDL)
    b = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + b).to(tl.int64)
    begin, end = tl.load(starts_ptr + b).to(tl.int64), tl.load(starts_ptr + b + 1).to(tl.int64)
    k = tl.arange(0, BLOCK)
    x = tl.load(sampled_ptr + begin + 1 + k, mask=(k < K) & (begin + 1 + k < end), other=-1).to(tl.int64)
    length = tl.min(tl.where(x < 0, k, BLOCK), 0)
    tl.store(step.tokens + b * K + k, tl.where(k < length, x, -1), mask=k < K)
    tl.store(step.first + b, begin)
    tl.store(step.draft_first + b, slot * depth)
    tl.store(step.position + b, tl.load(position_ptr + begin).to(tl.int64))
    tl.store(step.seed + b, tl.load(columns.seed + slot))
    tl.store(step.rule + b, tl.load(columns.rule + slot))
    temperature = tl.load(columns.temperature + slot)
    tl.store(step.temperature + b, temperature)
    tl.store(step.target_temperature + b, tl.where(temperature == 0, 0.0, 1.0) if PROCESSED else temperature)
    if TRUNCATES:
        top_k = tl.load(columns.top_k + slot)
        tl.store(step.top_k + b, tl.where(top_k < vocabulary, top_k, 0))
        tl.store(step.top_p + b, tl.load(columns.top_p + slot).to(tl.float64))
        tl.store(step.min_p + b, tl.load(columns.min_p + slot).to(tl.float64))
    if laws is not None:
        drafted = k < length
        drawn = tl.load(laws.position + slot * depth + k, mask=drafted, other=-1)
        here = tl.load(position_ptr + begin + k, mask=drafted, other=-2).to(tl.int64)
        gather_laws(laws, step.drafted, slot * depth, b * K, k, drafted, drawn == here, CREST)


@triton.jit
def gather_laws(laws, drafted, source, target, k, inside, fits, CREST: tl.constexpr):
    """Copy the laws of the draft tokens k of one request; those that do not fit get a scale of 0, which is no law."""
    tl.store(drafted.shift + target + k, tl.load(laws.shift + source + k, mask=inside), mask=inside)
    scale = tl.load(laws.scale + source + k, mask=inside & fits, other=0.0)
    tl.store(drafted.scale + target + k, scale, mask=inside)
    tl.store(drafted.first + target + k, tl.load(laws.first + source + k, mask=inside), mask=inside)
    if drafted.crest is not None:
        i = k[:, None] * CREST + tl.arange(0, CREST)[None, :]
        wide = inside[:, None]
        tl.store(drafted.crest + target * CREST + i, tl.load(laws.crest + source * CREST + i, mask=wide), mask=wide)
        tl.store(drafted.height + target * CREST + i, tl.load(laws.height + source * CREST + i, mask=wide), mask=wide)
