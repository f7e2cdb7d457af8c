# mypy: ignore-errors
"""Kernels of the optimal pick among several i.i.d. children of one node (bound: arXiv 2502.18779).

The first pass sums both laws p and q in bins of p/q. A plan (`hull`) then gives the share of q that the pick's law a
has in each bin. The second pass sums the residual (p - a)+ outside the children over chunks. At the end one program for
each sequence computes the law of the outcome and draws from it; a token in place of a child is drawn from the residual.
Rows are given by an index, so those of a tree need not be gathered.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from draftproof.kernels.lib.codes import (
    DRAFT_FAULT,
    IMPOSSIBLE_FAULT,
    NEXT_LANE,
    NO_TOKEN,
    STOP_LANE,
    TARGET_FAULT,
    TOKEN_FAULT,
)
from draftproof.kernels.lib.inverse_cdf import chunk_at, search_chunks, token_at
from draftproof.kernels.lib.laws import acceptance, load_law, probability
from draftproof.kernels.lib.rows import load_scores
from draftproof.kernels.lib.uniform import uniform
from draftproof.verify import optimal_binned

BINS: tl.constexpr = tl.constexpr(optimal_binned.BINS)
WIDTH: tl.constexpr = tl.constexpr(optimal_binned.WIDTH)
TINY: tl.constexpr = tl.constexpr(optimal_binned.TINY)
OFFSET: tl.constexpr = tl.constexpr(optimal_binned.OFFSET)
# Masses are summed as whole numbers of 2 ** -60: what a bin loses to rounding does not move its ratio
UNIT: tl.constexpr = tl.constexpr(1152921504606846976.0)


class RowIndex(NamedTuple):
    """The rows of each sequence that belong to the node whose children are verified."""

    node_ptr: Any  # [B] among the target's rows
    row_ptr: Any  # [B] among the drafter's


@triton.jit
def load_pair(pair, index, b, ids):
    """p and q of tokens `ids`, and their bins. A row without a law has no mass, whatever it holds."""
    rows, laws, draft_rows, draft_laws = pair
    n, m = tl.load(index.node_ptr + b), tl.load(index.row_ptr + b)
    inside = ids < rows.vocabulary
    p_law, q_law = load_law(rows, laws, b, n, n >= 0), load_law(draft_rows, draft_laws, b, m, m >= 0)
    p = tl.where(p_law.scale > 0, probability(laws, load_scores(rows, b, n, ids, inside), ids, p_law), 0.0)
    q = tl.where(q_law.scale > 0, probability(draft_laws, load_scores(draft_rows, b, m, ids, inside), ids, q_law), 0.0)
    place = tl.log(tl.maximum(p, TINY) / tl.maximum(q, TINY)) / WIDTH + OFFSET
    return p, q, tl.minimum(tl.maximum(place, 0.0), BINS - 0.5).to(tl.int32)


@triton.jit(do_not_specialize=["parts", "K"])
def fill_bins(pair, index, scratch, parts, K, TILE: tl.constexpr, BLOCK_K: tl.constexpr):
    """Masses [B, 2, BINS] of p and q, whole numbers whose sums do not depend on the order; and those of each child."""
    b = (tl.program_id(0) // parts).to(tl.int64)
    part = tl.program_id(0) % parts
    for t in range(part, tl.cdiv(pair.rows.vocabulary, TILE), parts):
        ids = t * TILE + tl.arange(0, TILE)
        p, q, bins = load_pair(pair, index, b, ids)
        tl.atomic_add(scratch.masses_ptr + 2 * b * BINS + bins, (p * UNIT).to(tl.int64), mask=p > 0, sem="relaxed")
        tl.atomic_add(
            scratch.masses_ptr + (2 * b + 1) * BINS + bins, (q * UNIT).to(tl.int64), mask=q > 0, sem="relaxed"
        )
    if part == 0:
        load_children(pair, index, scratch, b, K, BLOCK_K)


@triton.jit
def load_children(pair, index, scratch, b, K, BLOCK_K: tl.constexpr):
    """Store p, q and bin of each child, -1 for one that counts as not drawn, and the fault."""
    rows, laws, draft_laws = pair.rows, pair.laws, pair.draft_laws
    k = tl.arange(0, BLOCK_K)
    x = tl.load(rows.tokens_ptr + b * K + k, mask=k < K, other=-1)
    p_scale = tl.load(laws.scale_ptr + b * laws.stride + tl.load(index.node_ptr + b))
    q_scale = tl.load(draft_laws.scale_ptr + b * draft_laws.stride + tl.load(index.row_ptr + b))
    inside = (x >= 0) & (x < rows.vocabulary)
    token = tl.where(q_scale > 0, tl.where(inside, x, -1), -1)
    drawn = token >= 0
    p, q, bins = load_pair(pair, index, b, tl.where(drawn, token, NO_TOKEN))
    tl.store(scratch.p_ptr + b * K + k, p, mask=k < K)
    tl.store(scratch.q_ptr + b * K + k, q, mask=k < K)
    tl.store(scratch.token_ptr + b * K + k, token, mask=k < K)
    tl.store(scratch.bin_ptr + b * K + k, tl.where(drawn, bins, -1), mask=k < K)
    fault = tl.where(p_scale > 0, 0, TARGET_FAULT)
    fault += tl.where(tl.sum((x >= rows.vocabulary).to(tl.int32), 0) > 0, TOKEN_FAULT, 0)
    fault += tl.where(tl.sum((inside & (token < 0)).to(tl.int32), 0) > 0, DRAFT_FAULT, 0)
    fault += tl.where(tl.sum((drawn & (q == 0)).to(tl.int32), 0) > 0, IMPOSSIBLE_FAULT, 0)
    tl.store(scratch.fault_ptr + b, fault)


@triton.jit
def residual_of(pair, index, scratch, b, ids, K, target_alone):
    """(p - a)+ of tokens that are not among the children; with `target_alone` p of all tokens."""
    p, q, bins = load_pair(pair, index, b, ids)
    share = tl.load(scratch.share_ptr + b * BINS + bins).to(tl.float32)
    left = tl.maximum(p - q * tl.where(target_alone, 0.0, share), 0.0)
    for k in range(K):
        left = tl.where(ids == tl.where(target_alone, -1, tl.load(scratch.token_ptr + b * K + k)), 0.0, left)
    return left


@triton.jit(do_not_specialize=["parts", "K", "chunks"])
def sum_residual(pair, index, scratch, parts, K, chunks, TILE: tl.constexpr, CHUNK: tl.constexpr):
    """Sums [B, chunks] of the residual over chunks of tokens."""
    b = (tl.program_id(0) // parts).to(tl.int64)
    chunk = tl.arange(0, TILE // CHUNK)
    for t in range(tl.program_id(0) % parts, tl.cdiv(pair.rows.vocabulary, TILE), parts):
        ids = t * TILE + chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
        left = residual_of(pair, index, scratch, b, ids, K, b < 0)
        tl.store(scratch.sums_ptr + b * chunks + t * (TILE // CHUNK) + chunk, tl.sum(left, 1))


@triton.jit(do_not_specialize=["K", "chunks"])
def draw_outcome(
    pair, index, scratch, noise, out, K, chunks,
    CHUNK: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_CHUNKS: tl.constexpr,
):  # fmt: skip
    """The outcome of each sequence: a child, or the token at which the cumulated residual exceeds its uniform.

    A target row without a law has no residual and accepts nothing: that is outcome 0 and token 0.
    """
    b = tl.program_id(0).to(tl.int64)
    n, c = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_CHUNKS)
    at = b * K + n - 1  # outcome n is child n - 1
    x = tl.load(scratch.token_ptr + at, mask=(n > 0) & (n <= K), other=-1)
    sums = tl.load(scratch.sums_ptr + b * chunks + c, mask=c < chunks, other=0.0).to(tl.float64)
    chances = outcomes(scratch, b, at, x, tl.sum(sums, 0))
    child, _ = chunk_at(chances, uniform(noise, b, STOP_LANE, 0) * tl.sum(chances, 0))
    token = tl.sum(tl.where(n == child, x, 0), 0)
    if child == 0:
        u = uniform(noise, b, NEXT_LANE, 0)
        o, end, running, threshold, empty = search_chunks(sums, u, pair.rows.vocabulary, CHUNK)
        reached, final = o * 0 + NO_TOKEN, o * 0
        while (o < end) & (reached == NO_TOKEN):
            ids = o + tl.arange(0, CHUNK)
            masses = residual_of(pair, index, scratch, b, ids, K, empty).to(tl.float64)
            reached, last, running = token_at(ids, masses, running, threshold)
            final = tl.maximum(final, last)
            o += CHUNK
        token = tl.minimum(reached, final).to(tl.int64)
    tl.store(out.child + b, child.to(tl.int64))
    tl.store(out.token + b, token)


@triton.jit
def outcomes(scratch, b, at, x, rest):
    """[BLOCK_K]: the law of the outcome: none of the children, or one of them, accepted as the pick or drawn from the
    residual.

    As verify._topdown: the residual may hit a child, and equal children count as the first of them.
    """
    n, drawn = tl.arange(0, x.shape[0]), x >= 0
    p = tl.load(scratch.p_ptr + at, mask=drawn, other=0.0).to(tl.float64)
    q = tl.load(scratch.q_ptr + at, mask=drawn, other=0.0).to(tl.float64)
    bins = tl.load(scratch.bin_ptr + at, mask=drawn, other=0)
    a = q * tl.load(scratch.share_ptr + b * BINS + bins, mask=drawn, other=0.0)
    accept = tl.load(scratch.chosen_ptr + at, mask=drawn, other=0.0) * acceptance(p, a)
    same = (x[:, None] == x[None, :]) & drawn[:, None]  # [children, children]
    first = tl.min(tl.where(same, n[None, :], x.shape[0]), 1)
    hit = tl.where(first == n, tl.maximum(p - a, 0.0), 0.0)
    total = rest + tl.sum(hit, 0)
    lucky = tl.where(total > 0, hit / tl.where(total > 0, total, 1.0), tl.where(first == n, p, 0.0))
    merged = tl.sum(tl.where(first[:, None] == n[None, :], accept[:, None], 0.0), 0)
    merged += tl.maximum(1.0 - tl.sum(accept, 0), 0.0) * lucky
    return tl.where(n == 0, tl.maximum(1.0 - tl.sum(merged, 0), 0.0), merged)
