# mypy: ignore-errors
"""Add up what came of a step, one program for some requests."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftproof.kernels.lib import launching
from draftproof.kernels.lib.launching import cdiv, next_power_of_2
from draftproof.kernels.lib.pdl import computed, wait
from draftproof.kernels.lib.recording import launch

REQUESTS = 16  # of a program: additions to the same number wait for each other, so few programs add


def count(
    table: Tensor,  # [rules, width] float64
    rule: Tensor,  # [B]
    tokens: Tensor,  # [B, K], -1 behind a draft's end
    accepted: Tensor,  # [B]
    reach: Tensor,  # [B, K]
    fault: Tensor,  # [B]
    *,
    positions: int,  # columns of each sum by position
) -> Tensor:
    """Add a step to the row of each request's rule; [B] int32, how many tokens the request gets.

    The row has five sums (steps, draft tokens, accepted ones, accepted on average, faults), then three by position:
    draft tokens, accepted ones, accepted on average.
    """
    batch, drafts = tokens.shape
    number = torch.empty(batch, dtype=torch.int32, device=table.device)
    pdl, requests = launching.may_overlap(table.device), min(REQUESTS, next_power_of_2(batch))
    with launching.current(table.device):
        launch(
            count_requests, (cdiv(batch, requests),),
            table, table.shape[1], rule, tokens.contiguous(), accepted, reach, fault, number, batch, drafts,
            RULES=len(table), POSITIONS=positions, REQUESTS=requests, BLOCK=next_power_of_2(max(1, drafts)), PDL=pdl,
            num_warps=1, launch_pdl=pdl,
        )  # fmt: skip
    return number


@triton.jit(do_not_specialize=["B", "K"])
def count_requests(
    table_ptr, width, rule_ptr, tokens_ptr, accepted_ptr, reach_ptr, fault_ptr, number_ptr, B, K,
    RULES: tl.constexpr, POSITIONS: tl.constexpr, REQUESTS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Add the numbers of REQUESTS requests to the rows of their rules."""
    b = tl.program_id(0) * REQUESTS + tl.arange(0, REQUESTS)
    k = tl.arange(0, BLOCK)
    here = b < B
    i, inside = b[:, None] * K + k[None, :], here[:, None] & (k < K)[None, :]
    drafted = tl.load(tokens_ptr + i, mask=inside, other=-1) >= 0
    rule = tl.load(rule_ptr + b, mask=here, other=-1)
    if computed(tl.sum(rule, 0) + tl.sum(tl.sum(drafted.to(tl.int32), 1), 0)):
        wait(PDL)
    accepted = tl.load(accepted_ptr + b, mask=here, other=0)
    tl.store(number_ptr + b, accepted + 1, mask=here)
    reach = tl.load(reach_ptr + i, mask=inside, other=0.0).to(tl.float64)
    faulty = tl.load(fault_ptr + b, mask=here, other=0) != 0
    taken = inside & (k[None, :] < accepted[:, None])
    for r in tl.static_range(RULES):
        mine = rule == r
        if tl.sum(mine.to(tl.int32), 0) > 0:
            row = table_ptr + r * width
            drafted_at, taken_at = total_at(drafted.to(tl.float64), mine), total_at(taken.to(tl.float64), mine)
            reach_at = total_at(reach, mine)
            drafting = mine & (tl.sum(drafted.to(tl.int32), 1) > 0)
            add(row, tl.sum(drafting.to(tl.float64), 0))
            add(row + 1, tl.sum(drafted_at, 0))
            add(row + 2, tl.sum(taken_at, 0))
            add(row + 3, tl.sum(reach_at, 0))
            add(row + 4, tl.sum((mine & faulty).to(tl.float64), 0))
            add(row + 5 + k, drafted_at)
            add(row + 5 + POSITIONS + k, taken_at)
            add(row + 5 + 2 * POSITIONS + k, reach_at)


@triton.jit
def total_at(numbers, mine):
    """[BLOCK] by position: the sum of numbers [REQUESTS, BLOCK] over the requests of one rule."""
    return tl.sum(tl.where(mine[:, None], numbers, 0.0), 0)


@triton.jit
def add(ptr, number):
    tl.atomic_add(ptr, number, mask=number != 0, sem="relaxed")
