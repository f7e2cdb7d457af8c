"""Optimal pick among K i.i.d. guesses after one node (bound: arXiv 2502.18779), from raw logits.

Two passes over the rows and, between them, a plan over the bins of p/q on the host. Any binning is exact, because the
pick's law is made from the bins that were used.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from draftproof.errors import DraftproofError
from draftproof.kernels import launch
from draftproof.kernels.device import State
from draftproof.kernels.siblings import UNIT, draw_left, fill, leave
from draftproof.kernels.types import Names, Picked, Siblings, Summary
from draftproof.law import capped_ratio, divide, positive
from draftproof.law import sample as draw
from draftproof.noise import Lane, uniforms
from draftproof.verify import optimal, optimal_binned


def pick(guesses: Siblings, names: Names, laws: Summary, drafted: Summary) -> Picked:
    """See draftproof.kernels.pick."""
    target, node, draft, row, tokens, controls, draft_controls = guesses
    batch, count = tokens.shape
    size, device = target.shape[-1], target.device
    tokens = tokens.contiguous()
    common = (
        launch.rows_of(target, 0, tokens, controls), launch.law_of(laws, controls),
        launch.rows_of(draft, 0, tokens, draft_controls), launch.law_of(drafted, draft_controls),
        (node.contiguous(), row.contiguous()),
    )  # fmt: skip
    masses = torch.zeros(batch, 2, optimal_binned.BINS, dtype=torch.int64, device=device)
    points = torch.empty(batch, 2, count, device=device)
    seen = torch.empty_like(tokens)
    parts = launch.Plan.of(batch, 1, size).parts
    with launch.on(device):
        fill[(batch * parts,)](*common, masses, points, seen, parts, count, 1024, triton.next_power_of_2(count))
        p_bins, q_bins = (masses / UNIT.value).cpu().unbind(1)
        if (p_bins.sum(1) < 0.5).any():
            raise DraftproofError("a target row holds NaN or +inf, or no token is allowed: mend the logits")
        drawn = (tokens.cpu() >= 0) & (q_bins.sum(1, keepdim=True) > 0)  # a broken draft row draws nothing
        a_bins, chosen = optimal.choose(p_bins, q_bins, torch.where(drawn, seen.cpu(), -1))
        share = divide(a_bins, q_bins).to(device, torch.float32)
        sums = torch.empty(batch, launch.chunks(size), device=device)
        leave[(batch * parts,)](*common, share, sums, parts, count, sums.shape[1], launch.TILE, launch.CHUNK)
        state = State(None, *names, int(Lane.NEXT), 0)
        token = torch.empty(batch, dtype=torch.int64, device=device)
        wide = triton.next_power_of_2(sums.shape[1])
        draw_left[(batch,)](*common, share, sums, state, token, count, sums.shape[1], launch.CHUNK, wide)
    law = _outcomes(tokens, points.double(), share.double().gather(1, seen), chosen.to(device), sums.double().sum(1))
    child = draw(law, uniforms(*names, Lane.STOP, 1)[:, 0])
    guess = tokens.gather(1, (child - 1).clamp_min(0)[:, None])[:, 0]
    return Picked(child, torch.where(child > 0, guess, token))


def _outcomes(tokens: Tensor, points: Tensor, share: Tensor, chosen: Tensor, rest: Tensor) -> Tensor:
    """[B, K + 1]: the law of the outcome: no guess, or one of them by the token rule on the pick or by a lucky hit.

    As verify._topdown: what is left over may hit a guess, and equal guesses count as the first of them.
    """
    p, a = points[:, 0], points[:, 1] * share
    same = tokens[:, :, None] == tokens[:, None, :]  # [B, K, K]
    first = same.int().argmax(2)  # [B, K]
    fresh = (first == torch.arange(tokens.shape[1], device=tokens.device)) & (tokens >= 0)
    accept = chosen * capped_ratio(p, a)
    hit = torch.where(fresh, positive(p - a), 0)
    total = rest + hit.sum(1)
    none = positive(1 - accept.sum(1))
    lucky = torch.where((total > 0)[:, None], divide(hit, total[:, None].expand_as(hit)), torch.where(fresh, p, 0))
    merged = torch.zeros_like(accept).scatter_add(1, first, accept) + none[:, None] * lucky
    return torch.cat([positive(1 - merged.sum(1, keepdim=True)), merged], dim=1)
