# mypy: ignore-errors
"""Two small kernels beside those of verification: what a step needs of its requests, and its sums for the counters.

PyTorch would take dozens of launches for each; layout.py and counters.py have the same in PyTorch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftproof.integrations.vllm.counters import POSITIONS, SCALARS
from draftproof.integrations.vllm.layout import SlotColumns, SlotStep
from draftproof.kernels.lib import launching
from draftproof.kernels.lib.launching import next_power_of_2


def slot_step(
    columns: SlotColumns,
    slot: Tensor,  # [B]
    starts: Tensor,  # [B + 1]
    position: Tensor,  # [R]
    sampled: Tensor,  # [R]
    *,
    nodes: int,
    depth: int,
    vocabulary: int,
    truncates: bool,
) -> SlotStep:
    """As `layout.slot_step`, in one launch."""
    batch, device = len(slot), slot.device

    def columns_of(count: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Every one begins at a multiple of 16 bytes, or Triton would compile for each way in which they do not."""
        return torch.empty(count, launching.cdiv(batch, 4) * 4, dtype=dtype, device=device)[:, :batch].unbind()

    first, draft_first, begins, seed = columns_of(4, torch.int64)
    rule, top_k = columns_of(2, torch.int32)
    top_p, min_p = columns_of(2, torch.float64)
    temperature = torch.empty(batch, device=device)
    tokens = torch.empty(batch, nodes - 1, dtype=torch.int64, device=device)
    step = SlotStep(temperature, top_k, top_p, min_p, seed, rule, first, draft_first, begins, tokens)
    with launching.current(device):
        gather[(batch,)](
            columns, step, slot, starts, position, sampled, nodes - 1, depth, vocabulary,
            BLOCK=next_power_of_2(max(1, nodes - 1)), TRUNCATES=truncates, num_warps=1,
        )  # fmt: skip
    return step


def add_up(table: Tensor, rule: Tensor, tokens: Tensor, accepted: Tensor, reach: Tensor, fault: Tensor) -> None:
    """As `counters.add_up`, in one launch."""
    batch, drafts = tokens.shape
    with launching.current(table.device):
        count[(batch,)](
            table, table.shape[1], rule, tokens.contiguous(), accepted, reach, fault, drafts,
            SCALARS=len(SCALARS), POSITIONS=POSITIONS, BLOCK=next_power_of_2(drafts), num_warps=1,
        )  # fmt: skip


@triton.jit(do_not_specialize=["K", "depth", "vocabulary"])
def gather(
    columns, step, slot_ptr, starts_ptr, position_ptr, sampled_ptr, K, depth, vocabulary,
    BLOCK: tl.constexpr, TRUNCATES: tl.constexpr,
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
    tl.store(step.temperature + b, tl.load(columns.temperature + slot))
    if TRUNCATES:
        top_k = tl.load(columns.top_k + slot)
        tl.store(step.top_k + b, tl.where(top_k < vocabulary, top_k, 0))
        tl.store(step.top_p + b, tl.load(columns.top_p + slot).to(tl.float64))
        tl.store(step.min_p + b, tl.load(columns.min_p + slot).to(tl.float64))


@triton.jit(do_not_specialize=["K"])
def count(
    table_ptr, width, rule_ptr, tokens_ptr, accepted_ptr, reach_ptr, fault_ptr, K,
    SCALARS: tl.constexpr, POSITIONS: tl.constexpr, BLOCK: tl.constexpr,
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
    place = row + SCALARS + k
    tl.atomic_add(row, tl.where(length > 0, 1.0, 0.0).to(tl.float64), sem="relaxed")
    tl.atomic_add(row + 1, length, sem="relaxed")
    tl.atomic_add(row + 2, accepted.to(tl.float64), sem="relaxed")
    tl.atomic_add(row + 3, tl.sum(reach, 0), sem="relaxed")
    tl.atomic_add(row + 4, tl.where(faulty, 1.0, 0.0).to(tl.float64), sem="relaxed")
    tl.atomic_add(place, one, mask=drafted, sem="relaxed")
    tl.atomic_add(place + POSITIONS, one, mask=k < accepted, sem="relaxed")
    tl.atomic_add(place + 2 * POSITIONS, reach, mask=reach > 0, sem="relaxed")
