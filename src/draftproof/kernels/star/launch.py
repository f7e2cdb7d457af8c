"""Launch the kernels of the optimal pick among K i.i.d. children of one node, from raw logits.

Two passes over the rows and, between them, a plan over the bins of p/q. Any binning is exact, because the pick's law is
computed from the bins that were used.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from draftproof.kernels.chain.plan import CHUNK, TILE, Tiling, chunk_count
from draftproof.kernels.lib import launching
from draftproof.kernels.lib.launching import next_power_of_2
from draftproof.kernels.lib.laws import LawPair, SummaryPtrs
from draftproof.kernels.lib.rows import LogitRows
from draftproof.kernels.star.hull import plan_pick
from draftproof.kernels.star.pick import RowIndex, draw_outcome, fill_bins, sum_residual
from draftproof.kernels.types import NoiseKeys, Picked, Siblings, Summary
from draftproof.verify.optimal_binned import BINS

BIN_TILE = 1024  # tokens that are put into bins at a time


class PickScratch(NamedTuple):
    """What the kernels of a pick leave for each other."""

    masses_ptr: Tensor  # [B, 2, BINS] int64: of p and of q, in whole numbers of 1 / UNIT
    token_ptr: Tensor  # [B, K] int64, the children; -1 for one that counts as not drawn
    bin_ptr: Tensor  # [B, K] int32, the child's bin; -1 likewise
    p_ptr: Tensor  # [B, K] float32
    q_ptr: Tensor  # [B, K] float32
    fault_ptr: Tensor  # [B] int32
    rise_ptr: Tensor  # [B, BINS] float64, of each bin on the way to the hull, ...
    run_ptr: Tensor  # [B, BINS] float64
    edge_rise_ptr: Tensor  # [B, 1 + BINS] float64, ... and of the edge that ends with it, ...
    edge_run_ptr: Tensor  # [B, 1 + BINS] float64
    edge_first_ptr: Tensor  # [B, 1 + BINS] int32, ... which begins with this bin
    share_ptr: Tensor  # [B, BINS] float64: the pick's law is this share of q
    chosen_ptr: Tensor  # [B, K] float64, the chance of each child to be the pick
    sums_ptr: Tensor  # [B, E] float32, the residual of each chunk of tokens

    @staticmethod
    def of(batch: int, children: int, vocabulary: int, device: torch.device) -> PickScratch:
        """Scratch memory for so many children of each sequence."""

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return PickScratch(
            masses_ptr=torch.zeros(batch, 2, BINS, dtype=torch.int64, device=device),
            token_ptr=empty(batch, children, dtype=torch.int64),
            bin_ptr=empty(batch, children, dtype=torch.int32),
            p_ptr=empty(batch, children),
            q_ptr=empty(batch, children),
            fault_ptr=empty(batch, dtype=torch.int32),
            rise_ptr=empty(batch, BINS, dtype=torch.float64),
            run_ptr=empty(batch, BINS, dtype=torch.float64),
            edge_rise_ptr=empty(batch, 1 + BINS, dtype=torch.float64),
            edge_run_ptr=empty(batch, 1 + BINS, dtype=torch.float64),
            edge_first_ptr=empty(batch, 1 + BINS, dtype=torch.int32),
            share_ptr=empty(batch, BINS, dtype=torch.float64),
            chosen_ptr=empty(batch, children, dtype=torch.float64),
            sums_ptr=empty(batch, chunk_count(vocabulary)),
        )


def pick(siblings: Siblings, noise: NoiseKeys, laws: Summary, drafted: Summary) -> Picked:
    """See draftproof.kernels.pick."""
    tokens, device = siblings.tokens.contiguous(), siblings.target.device
    (batch, count), vocabulary = tokens.shape, siblings.target.shape[-1]
    pair = LawPair(
        rows=LogitRows.of(siblings.target, tokens, siblings.controls),
        laws=SummaryPtrs.of(laws, siblings.controls),
        draft_rows=LogitRows.of(siblings.draft, tokens, siblings.draft_controls),
        draft_laws=SummaryPtrs.of(drafted, siblings.draft_controls),
    )
    index = RowIndex(siblings.node.contiguous(), siblings.row.contiguous())
    scratch = PickScratch.of(batch, count, vocabulary, device)
    child, token = (torch.empty(batch, dtype=torch.int64, device=device) for _ in range(2))
    out = Picked(child, token, scratch.fault_ptr)
    parts, chunks = Tiling.of(batch, 1, vocabulary).parts, chunk_count(vocabulary)
    block_k, block_chunks = next_power_of_2(count + 1), next_power_of_2(chunks)
    with launching.current(device):
        fill_bins[(batch * parts,)](pair, index, scratch, parts, count, TILE=BIN_TILE, BLOCK_K=block_k)
        plan_pick[(batch,)](scratch, count, BLOCK_K=block_k, num_warps=8)
        sum_residual[(batch * parts,)](pair, index, scratch, parts, count, chunks, TILE=TILE, CHUNK=CHUNK)
        draw_outcome[(batch,)](
            pair, index, scratch, noise, out, count, chunks, CHUNK=CHUNK, BLOCK_K=block_k, BLOCK_CHUNKS=block_chunks
        )
    return out
