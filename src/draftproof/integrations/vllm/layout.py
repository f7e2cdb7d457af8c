"""From vLLM's flat rows to sequences of rows, and back. Nothing is copied, and nothing waits for the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from draftproof.kernels import Ragged, Summary
from draftproof.kernels.types import CREST


def to_device(values: Any, device: torch.device) -> Tensor:
    """Numbers that the host has as a tensor; it does not wait for the copy."""
    tensor = torch.as_tensor(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


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
        joined = to_device(np.concatenate(parts), device)  # one copy for all of them
        request, first, draft_first, where = torch.split(joined, [len(part) for part in parts])
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


class SlotColumns(NamedTuple):
    """What is kept of all requests, by slot [M]: vLLM's controls and seeds, and the rules."""

    temperature: Tensor  # float32
    top_k: Tensor  # int32; the vocabulary's size is off
    top_p: Tensor  # float32
    min_p: Tensor  # float32
    seed: Tensor  # int64
    rule: Tensor  # int32


class SlotLaws(NamedTuple):
    """The laws that draft tokens were drawn from, by slot and draft token [M, K], as in `kernels.Summary`."""

    shift: Tensor
    scale: Tensor
    first: Tensor
    crest: Tensor  # [M, K, CREST]
    height: Tensor
    position: Tensor  # int64, of the token that the law is of what follows; -1 for none

    @staticmethod
    def of(logits: Tensor) -> SlotLaws:
        """Memory for the laws of rows [M, K, V]."""
        shape, device = logits.shape[:2], logits.device
        shift, scale = torch.empty(2, *shape, device=device).unbind()
        first = torch.empty(shape, dtype=torch.int32, device=device)
        crest = torch.empty(*shape, CREST, dtype=torch.int32, device=device)
        height = torch.empty(*shape, CREST, device=device)
        return SlotLaws(shift, scale, first, crest, height, torch.full(shape, -1, dtype=torch.int64, device=device))


class SlotStep(NamedTuple):
    """The same of the B requests of a step, as the kernels take it, and where their rows are."""

    temperature: Tensor  # [B] float32
    target_temperature: Tensor  # [B] float32: the same, or 1 (0 where greedy) if vLLM has divided by it
    top_k: Tensor  # [B] int32, 0 = off; like the next two, of no use where nothing is truncated
    top_p: Tensor  # [B] float64
    min_p: Tensor  # [B] float64
    seed: Tensor  # [B] int64
    rule: Tensor  # [B] int32
    first: Tensor  # [B] int64, the first row
    draft_first: Tensor  # [B] int64, the same among rows of draft tokens
    position: Tensor  # [B] int64, of the first row
    tokens: Tensor  # [B, nodes - 1] int64: the draft tokens, -1 behind a draft's end
    drafted: Summary | None = None  # [B, nodes - 1] the laws that they were drawn from, where these are kept


def slot_step(
    columns: SlotColumns,
    slot: Tensor,  # [B]
    starts: Tensor,  # [B + 1] where each request's rows begin; their lengths only the device knows
    position: Tensor,  # [R]
    sampled: Tensor,  # [R] the token that each row was read with: the last committed one, then the draft tokens
    *,
    nodes: int,  # the most rows of a request
    depth: int,  # rows of draft tokens of each slot
    vocabulary: int,
    truncates: bool,  # whether any of the requests does
    processed: bool,  # whether the target's rows have been divided by the temperature
) -> SlotStep:
    """What the requests of a step need; `launches.slot_step` has the same in one launch."""
    slot, first = slot.to(torch.int64), starts[:-1].to(torch.int64)
    temperature, top_k, top_p, min_p, seed, rule = (column[slot] for column in columns)
    place = first[:, None] + torch.arange(1, nodes, device=slot.device)
    inside = place < starts[1:, None]
    tokens = torch.where(inside, sampled[torch.where(inside, place, 0)].to(torch.int64), -1)
    top_k = torch.where(top_k < vocabulary, top_k, 0)
    left = (temperature != 0).to(torch.float32) if processed else temperature
    return SlotStep(
        temperature, left, top_k, top_p.to(torch.float64), min_p.to(torch.float64), seed, rule, first, slot * depth,
        position[first].to(torch.int64), _ended(tokens),
    )  # fmt: skip


def ended_by_grammars(logits: Tensor, sampled: Tensor, marked: Tensor) -> Tensor:
    """Draft tokens [R] without those that vLLM has marked, -1, because they may not be accepted.

    A token that the row before it [R, V] forbids stays: verification rejects it. Leaving it out would be wrong: what
    the drafter's law has there would go to other tokens. Where the row allows the token, no grammar has seen it, and
    the draft ends before it.
    """
    place = sampled[1:, None].clamp(min=0).to(torch.int64)
    forbidden = torch.isneginf(logits[:-1].gather(1, place)[:, 0])
    return torch.cat([sampled[:1], torch.where((marked[1:] >= 0) | forbidden, sampled[1:], -1)])


def slot_rows(logits: Tensor) -> Tensor:
    """Rows [M, K, V] by slot as one after another, [M * K, V]."""
    slots, depth = logits.shape[:2]
    return logits.flatten(0, 1) if logits.stride(0) == depth * logits.stride(1) else logits.reshape(slots * depth, -1)


def _ended(tokens: Tensor) -> Tensor:
    """-1 from the first -1 on: a draft ends there."""
    return torch.where((tokens >= 0).to(torch.int32).cumprod(1) > 0, tokens, -1)
