"""From vLLM's flat rows to sequences of rows, and back. Nothing is copied, and nothing waits for the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from draftproof.kernels import Ragged


class FlatDrafts(NamedTuple):
    """Where the drafts of a batch lie in flat rows, of which request b has lengths[b] + 1, one after another."""

    request: Tensor  # [R] the request of each row
    first: Tensor  # [B] its first row
    draft_first: Tensor  # [B] the same among rows of draft tokens only, of which it has lengths[b]
    place: Tensor  # [D] where each draft token goes in [B, K], as one number
    width: int  # K, the longest draft

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device) -> FlatDrafts:
        """From the number of draft tokens of each request, which the host knows."""
        drafts = np.asarray(lengths, dtype=np.int64)
        width, batch = int(drafts.max(initial=0)), np.arange(len(drafts))
        before = np.cumsum(drafts) - drafts
        owner = np.repeat(batch, drafts)
        place = owner * width + np.arange(len(owner)) - before[owner]
        parts = (np.repeat(batch, drafts + 1), before + batch, before, place)
        joined = torch.from_numpy(np.concatenate(parts))
        if device.type == "cuda":  # one copy for all of them
            joined = joined.pin_memory()
        request, first, draft_first, where = torch.split(
            joined.to(device, non_blocking=True), [len(part) for part in parts]
        )
        return FlatDrafts(request, first, draft_first, where, width)

    def tokens(self, flat: Tensor) -> Tensor:
        """[B, K] int64: the draft tokens [D] in rows, -1 behind a draft's end."""
        batch = len(self.first)
        rows = torch.full((batch * self.width,), -1, dtype=torch.int64, device=flat.device)
        rows[self.place] = flat.to(torch.int64)
        return _ended(rows.view(batch, self.width))

    def target(self, logits: Tensor) -> Ragged:
        """Flat rows [R, V] by request."""
        return Ragged(logits, self.first, self.width + 1)

    def draft(self, rows: Tensor) -> Ragged:
        """Flat rows [D, V] of draft tokens by request."""
        return Ragged(rows, self.draft_first, self.width)


def slots_of(
    sampled: Tensor,  # [R] the token that each row was read with: the last committed one, then the draft tokens
    starts: Tensor,  # [B + 1] where each request's rows begin
    nodes: int,  # the most rows of a request
) -> Tensor:
    """[B, nodes - 1] int64: the draft tokens of flat rows whose lengths only the device knows; -1 behind an end."""
    place = starts[:-1, None].to(torch.int64) + torch.arange(1, nodes, device=sampled.device)
    inside = place < starts[1:, None]
    tokens = sampled[torch.where(inside, place, 0)].to(torch.int64)
    return _ended(torch.where(inside, tokens, -1))


def slot_rows(logits: Tensor, slot: Tensor, width: int) -> Ragged:
    """Rows [M, K, V] by slot as the rows of the requests in these slots [B]; `width` of each are looked at."""
    slots, depth = logits.shape[:2]
    rows = logits.flatten(0, 1) if logits.stride(0) == depth * logits.stride(1) else logits.reshape(slots * depth, -1)
    return Ragged(rows, slot.to(torch.int64) * depth, width)


def _ended(tokens: Tensor) -> Tensor:
    """-1 from the first -1 on: a draft ends there."""
    return torch.where((tokens >= 0).to(torch.int32).cumprod(1) > 0, tokens, -1)
