# mypy: ignore-errors
"""Draw the next draft token of requests in slots, and keep its row and the law that it is drawn from.

The row is read once: its chunks are summed in powers of two of their own while it is copied to its slot. One program
for each request then makes the law of these sums, finds the chunk in which the token lies, and reads that again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftproof.kernels.chain.emit import law_from_chunks
from draftproof.kernels.chain.plan import CHUNK, PROCESSORS, TILE
from draftproof.kernels.chain.residual import tile_ids
from draftproof.kernels.lib import launching
from draftproof.kernels.lib.codes import DRAFT_LANE, NO_TOKEN
from draftproof.kernels.lib.inverse_cdf import chunk_at, token_at
from draftproof.kernels.lib.launching import cdiv, next_power_of_2
from draftproof.kernels.lib.laws import lane_shift, rate_of
from draftproof.kernels.lib.pdl import computed, launch_dependents, wait
from draftproof.kernels.lib.recording import launch
from draftproof.kernels.lib.uniform import uniform_of
from draftproof.kernels.types import CREST

MOST_TILES = 8  # of a row that a program reads


class SlotRows(NamedTuple):
    """Rows of raw logits, and where what is known of their requests lies."""

    logits_ptr: Any  # [B, V]
    stride: Any
    vocabulary: Any
    slot_ptr: Any  # [B], -1 for a row of no request
    position_ptr: Any  # [B]
    depth_ptr: Any  # [1] how many draft tokens of the same draft come before
    temperature_ptr: Any  # [M]
    seed_ptr: Any  # [M]


class ChunkStats(NamedTuple):
    """What was found in each chunk of each row, [B, chunks]."""

    shift_ptr: Any  # the power of two that it is summed in
    total_ptr: Any
    peak_ptr: Any  # its largest score, ...
    token_ptr: Any  # ... and the first token that has it


def draw(
    logits: Tensor,  # [B, V] raw, packed rows
    slot: Tensor,  # [B], -1 for a row of no request
    temperature: Tensor,  # [M] float32
    seed: Tensor,  # [M] int64
    position: Tensor,  # [B] of the row
    depth: Tensor,  # one number: how many draft tokens of the same draft come before
    rows: Tensor,  # [M, K, V] where the rows are kept
    laws: tuple[Tensor, ...],  # [M, K] and crests [M, K, CREST], by the names that are written below
) -> Tensor:
    """[B] int64: the tokens, by the uniforms (seed, request 0, step `position`, DRAFT, 0); 0 for a row of no request.

    The row, its law and its position are kept at the request's slot and `depth`.
    """
    batch, size = logits.shape
    device, tiles = logits.device, cdiv(size, TILE)
    chunks = tiles * TILE // CHUNK
    each = min(max(1, batch * tiles // (8 * PROCESSORS)), MOST_TILES)
    reals = torch.empty(3, batch, chunks, device=device)
    ids = torch.empty(batch, chunks, dtype=torch.int32, device=device)
    out = torch.empty(batch, dtype=torch.int64, device=device)
    given = SlotRows(logits, logits.stride(0), size, slot, position, depth, temperature, seed)
    stats, pdl = ChunkStats(*reals.unbind(), ids), launching.may_overlap(device)
    with launching.current(device):
        launch(
            read_tiles, (batch * cdiv(tiles, each),),
            given, stats, rows, rows.stride(0), rows.stride(1), tiles, each, TILE=TILE, CHUNK=CHUNK, PDL=pdl,
            num_warps=4,
        )  # fmt: skip
        launch(
            draw_row, (batch,),
            given, stats, laws, out, chunks, rows.shape[1],
            CHUNK=CHUNK, CREST=CREST, BLOCK_CHUNKS=next_power_of_2(max(chunks, CREST)), PDL=pdl,
            num_warps=4, launch_pdl=pdl,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["tiles", "each"])
def read_tiles(
    rows, stats, kept_ptr, kept_slot, kept_depth, tiles, each, TILE: tl.constexpr, CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Copy `each` tiles of a row to its slot, and sum their chunks."""
    launch_dependents(PDL)
    parts = tl.cdiv(tiles, each)
    b = (tl.program_id(0) // parts).to(tl.int64)
    part = tl.program_id(0) % parts
    slot = tl.load(rows.slot_ptr + b).to(tl.int64)
    if slot >= 0:
        rate, _ = rate_of(rows, slot)
        row_ptr = rows.logits_ptr + b * rows.stride
        kept_ptr += slot * kept_slot + tl.load(rows.depth_ptr).to(tl.int64) * kept_depth
        for t in tl.range(part * each, tl.minimum((part + 1) * each, tiles), num_stages=3):
            ids = tile_ids(t, TILE, CHUNK)
            logits = tl.load(row_ptr + ids, mask=ids < rows.vocabulary, other=float("-inf"))
            tl.store(kept_ptr + ids, logits, mask=ids < rows.vocabulary)
            s = logits.to(tl.float32)
            peak = tl.max(s, 1)
            shift = lane_shift(peak, rate)
            i = (b * tiles + t) * (TILE // CHUNK) + tl.arange(0, TILE // CHUNK)
            tl.store(stats.shift_ptr + i, shift)
            tl.store(stats.total_ptr + i, tl.sum(tl.exp2(tl.fma(s, rate, -shift[:, None])), 1))
            tl.store(stats.peak_ptr + i, peak)
            tl.store(stats.token_ptr + i, tl.min(tl.where(s == peak[:, None], ids, NO_TOKEN), 1))


@triton.jit(do_not_specialize=["chunks", "K"])
def draw_row(
    rows, stats, laws, out_ptr, chunks, K,
    CHUNK: tl.constexpr, CREST: tl.constexpr, BLOCK_CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The law of one row, and a token."""
    b = tl.program_id(0).to(tl.int64)
    slot = tl.load(rows.slot_ptr + b).to(tl.int64)
    token = tl.zeros((), tl.int32)
    if slot >= 0:
        rate, greedy = rate_of(rows, slot)
        position = tl.load(rows.position_ptr + b).to(tl.int64)
        u = uniform_of(tl.load(rows.seed_ptr + slot), position * 0, position, DRAFT_LANE, 0)
        at = slot * K + tl.load(rows.depth_ptr).to(tl.int64)
        if computed(u + rate + at):
            wait(PDL)
        i = b * chunks
        c = tl.arange(0, BLOCK_CHUNKS)
        shifts = tl.load(stats.shift_ptr + i + c, mask=c < chunks, other=-1e30)
        sums = tl.load(stats.total_ptr + i + c, mask=c < chunks, other=0.0).to(tl.float64)
        shift, scale, sums = law_from_chunks(shifts, sums)
        threshold = u * tl.sum(sums, 0)
        chunk, before = chunk_at(sums, threshold)
        ids = chunk * CHUNK + tl.arange(0, CHUNK)
        s = tl.load(rows.logits_ptr + b * rows.stride + ids, mask=ids < rows.vocabulary, other=float("-inf"))
        masses = tl.exp2(tl.fma(s.to(tl.float32), rate, -shift)) * scale
        reached, last, _ = token_at(ids, masses.to(tl.float64), before, threshold)
        first = keep_crest(stats, laws, i, at, chunks, CREST, BLOCK_CHUNKS)
        token = tl.where(scale > 0, tl.where(greedy, first, tl.minimum(reached, last)), 0)
        tl.store(laws.shift + at, shift)
        tl.store(laws.scale + at, scale)
        tl.store(laws.first + at, tl.where(greedy, first, 0))
        tl.store(laws.position + at, position)
    tl.store(out_ptr + b, token.to(tl.int64))


@triton.jit
def keep_crest(stats, laws, i, at, chunks, CREST: tl.constexpr, BLOCK_CHUNKS: tl.constexpr):
    """Keep the largest token of each of CREST parts of a row; the first of the largest of all."""
    part = tl.arange(0, CREST)
    c = part[:, None] * (BLOCK_CHUNKS // CREST) + tl.arange(0, BLOCK_CHUNKS // CREST)[None, :]
    peaks = tl.load(stats.peak_ptr + i + c, mask=c < chunks, other=float("-inf"))
    tokens = tl.load(stats.token_ptr + i + c, mask=c < chunks, other=NO_TOKEN)
    high = tl.max(peaks, 1)
    best = tl.min(tl.where(peaks == high[:, None], tokens, NO_TOKEN), 1)
    tl.store(laws.crest + at * CREST + part, tl.where(high > float("-inf"), best, -1))
    tl.store(laws.height + at * CREST + part, high)
    return tl.min(tl.where(high == tl.max(high, 0), best, NO_TOKEN), 0)
