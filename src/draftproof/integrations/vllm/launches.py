"""What a step needs of its requests, and its sums for the counters, by one launch each on a GPU.

layout.py and counters.py have the same in PyTorch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftproof.integrations.vllm.counters import POSITIONS
from draftproof.integrations.vllm.layout import SlotColumns, SlotLaws, SlotStep
from draftproof.kernels import Summary, crest_pays
from draftproof.kernels.lib.launching import cdiv
from draftproof.kernels.slots.count import count
from draftproof.kernels.slots.gather import gather


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
    processed: bool,
    laws: SlotLaws | None = None,  # of the draft tokens, where they are kept
) -> SlotStep:
    """As `layout.slot_step`, in one launch; with laws also `SlotStep.drafted`."""
    batch, device = len(slot), slot.device

    def columns_of(count: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Every one begins at a multiple of 16 bytes, or Triton would compile for each way in which they do not."""
        return torch.empty(count, cdiv(batch, 4) * 4, dtype=dtype, device=device)[:, :batch].unbind()

    first, draft_first, begins, seed = columns_of(4, torch.int64)
    rule, top_k = columns_of(2, torch.int32)
    top_p, min_p = columns_of(2, torch.float64)
    temperature, target_temperature = columns_of(2, torch.float32)
    tokens = torch.empty(batch, nodes - 1, dtype=torch.int64, device=device)
    drafted = None
    if laws is not None:
        crest = crest_pays(batch, nodes, vocabulary)
        drafted = Summary.empty(batch, nodes - 1, device, crest)
    step = SlotStep(
        temperature, target_temperature, top_k, top_p, min_p, seed, rule, first, draft_first, begins, tokens, drafted
    )
    gather(
        columns, laws, step, slot, starts, position, sampled,
        depth=depth, vocabulary=vocabulary, truncates=truncates, processed=processed,
    )  # fmt: skip
    return step


def add_up(table: Tensor, rule: Tensor, tokens: Tensor, accepted: Tensor, reach: Tensor, fault: Tensor) -> Tensor:
    """As `counters.add_up`, in one launch."""
    return count(table, rule, tokens, accepted, reach, fault, positions=POSITIONS)
