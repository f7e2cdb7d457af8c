"""Optimal pick among K i.i.d. guesses after one node (bound: arXiv 2502.18779), from raw logits.

Two passes over the rows and, between them, a plan over the bins of p/q. Any binning is exact, because the pick's law is
made from the bins that were used.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from draftproof.kernels.chain import launch
from draftproof.kernels.lib import launching
from draftproof.kernels.star.hull import plan
from draftproof.kernels.star.pick import close, fill, leave
from draftproof.kernels.types import Names, Picked, Siblings, Summary
from draftproof.verify.optimal_binned import BINS


class Room(NamedTuple):
    """What the kernels leave for each other."""

    masses: Tensor  # [B, 2, BINS] int64: of p and of q, in whole numbers of 1 / UNIT
    guess: Tensor  # [B, K] int64, the guesses; -1 for one that counts as not drawn
    place: Tensor  # [B, K] int32, its bin; -1 likewise
    p: Tensor  # [B, K] float32
    q: Tensor  # [B, K] float32
    fault: Tensor  # [B] int32
    rise: Tensor  # [B, BINS] float64, of each bin on the way to the hull, ...
    run: Tensor  # [B, BINS] float64
    edge_rise: Tensor  # [B, 1 + BINS] float64, ... and of the edge that ends with it, ...
    edge_run: Tensor  # [B, 1 + BINS] float64
    edge_first: Tensor  # [B, 1 + BINS] int32, ... which begins with this bin
    share: Tensor  # [B, BINS] float64: the pick's law is this share of q
    chosen: Tensor  # [B, K] float64, the chance of each guess to be the pick
    sums: Tensor  # [B, E] float32, what is left in each chunk of tokens

    @staticmethod
    def of(batch: int, guesses: int, size: int, device: torch.device) -> Room:
        """Memory for so many guesses of each sequence."""

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        double, word, each, bins, ends = torch.float64, torch.int32, (batch, guesses), (batch, BINS), (batch, 1 + BINS)
        return Room(
            torch.zeros(batch, 2, BINS, dtype=torch.int64, device=device),
            room(*each, dtype=torch.int64), room(*each, dtype=word), room(*each), room(*each), room(batch, dtype=word),
            room(*bins, dtype=double), room(*bins, dtype=double), room(*ends, dtype=double), room(*ends, dtype=double),
            room(*ends, dtype=word), room(*bins, dtype=double), room(*each, dtype=double),
            room(batch, launch.chunks(size)),
        )  # fmt: skip


def pick(guesses: Siblings, names: Names, laws: Summary, drafted: Summary) -> Picked:
    """See draftproof.kernels.pick."""
    target, node, draft, row, tokens, controls, draft_controls = guesses
    (batch, count), size, device = tokens.shape, target.shape[-1], target.device
    tokens = tokens.contiguous()
    common = (
        launch.rows_of(target, 0, tokens, controls), launch.law_of(laws, controls),
        launch.rows_of(draft, 0, tokens, draft_controls), launch.law_of(drafted, draft_controls),
        (node.contiguous(), row.contiguous()),
    )  # fmt: skip
    room = Room.of(batch, count, size, device)
    child, token = (torch.empty(batch, dtype=torch.int64, device=device) for _ in range(2))
    out = Picked(child, token, room.fault)
    parts, kept, wide = launch.Plan.of(batch, 1, size).parts, launch.chunks(size), triton.next_power_of_2
    with launching.current(device):
        fill[(batch * parts,)](*common, room, parts, count, TILE=1024, KP=wide(count + 1))
        plan[(batch,)](room, count, KP=wide(count + 1), num_warps=8)
        leave[(batch * parts,)](*common, room, parts, count, kept, TILE=launch.TILE, CHUNK=launch.CHUNK)
        close[(batch,)](*common, room, names, out, count, kept, CHUNK=launch.CHUNK, KP=wide(count + 1), EP=wide(kept))
    return out
