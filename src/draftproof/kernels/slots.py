# mypy: ignore-errors
"""For engines that keep their requests in slots: gather what a step needs of them, and add up what came of it.

PyTorch takes dozens of launches for either. Both fill tensors of the caller's, one program for each request.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from draftproof.kernels.lib import launching
from draftproof.kernels.lib.launching import next_power_of_2
from draftproof.kernels.lib.recording import launch


def gather(
    columns: tuple[Tensor, ...],  # by slot [M]; these and the step's have the names that are read and written below
    step: tuple[Tensor, ...],  # by request [B]; tokens [B, K]
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
    """Controls, seeds and rules by request instead of by slot, the places of its rows, and its draft tokens."""
    drafts = step.tokens.shape[1]
    with launching.current(slot.device):
        launch(
            gather_request, (len(slot),),
            columns, step, slot, starts, position, sampled, drafts, depth, vocabulary,
            BLOCK=next_power_of_2(max(1, drafts)), TRUNCATES=truncates, PROCESSED=processed, num_warps=1,
        )  # fmt: skip


def count(
    table: Tensor,  # [rules, width] float64
    rule: Tensor,  # [B]
    tokens: Tensor,  # [B, K], -1 behind a draft's end
    accepted: Tensor,  # [B]
    reach: Tensor,  # [B, K]
    fault: Tensor,  # [B]
    *,
    positions: int,  # columns of each sum by position
) -> None:
    """Add a step to the row of each request's rule.

    The row has five sums (steps, draft tokens, accepted ones, accepted on average, faults), then three by position:
    draft tokens, accepted ones, accepted on average.
    """
    batch, drafts = tokens.shape
    with launching.current(table.device):
        launch(
            count_request, (batch,),
            table, table.shape[1], rule, tokens.contiguous(), accepted, reach, fault, drafts,
            POSITIONS=positions, BLOCK=next_power_of_2(drafts), num_warps=1,
        )  # fmt: skip


@triton.jit(do_not_specialize=["K", "depth", "vocabulary"])
def gather_request(
    columns, step, slot_ptr, starts_ptr, position_ptr, sampled_ptr, K, depth, vocabulary,
    BLOCK: tl.constexpr, TRUNCATES: tl.constexpr, PROCESSED: tl.constexpr,
):  # fmt: skip
    """What one request needs."""
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


@triton.jit(do_not_specialize=["K"])
def count_request(
    table_ptr, width, rule_ptr, tokens_ptr, accepted_ptr, reach_ptr, fault_ptr, K,
    POSITIONS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add one request's numbers to the row of its rule."""
    b = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    one = tl.full((BLOCK,), 1.0, tl.float64)
    drafted = tl.load(tokens_ptr + b * K + k, mask=k < K, other=-1) >= 0
    accepted = tl.load(accepted_ptr + b)
    reach = tl.load(reach_ptr + b * K + k, mask=k < K, other=0.0).to(tl.float64)
    length = tl.sum(tl.where(drafted, one, 0.0), 0)
    faulty = tl.load(fault_ptr + b) != 0
    row = table_ptr + tl.load(rule_ptr + b).to(tl.int64) * width
    place = row + 5 + k
    tl.atomic_add(row, tl.where(length > 0, 1.0, 0.0).to(tl.float64), sem="relaxed")
    tl.atomic_add(row + 1, length, sem="relaxed")
    tl.atomic_add(row + 2, accepted.to(tl.float64), sem="relaxed")
    tl.atomic_add(row + 3, tl.sum(reach, 0), sem="relaxed")
    tl.atomic_add(row + 4, tl.where(faulty, 1.0, 0.0).to(tl.float64), sem="relaxed")
    tl.atomic_add(place, one, mask=drafted, sem="relaxed")
    tl.atomic_add(place + POSITIONS, one, mask=k < accepted, sem="relaxed")
    tl.atomic_add(place + 2 * POSITIONS, reach, mask=reach > 0, sem="relaxed")
