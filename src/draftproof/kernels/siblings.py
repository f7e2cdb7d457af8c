# mypy: ignore-errors
"""Several guesses after one node: the passes over its rows p and q that a pick among them needs (2502.18779).

The first pass adds up both laws in bins of p/q. A plan then says which share of q the pick's law a has in each bin. The
second pass sums what is left, (p - a)+ outside the guesses, over chunks, and a token is drawn from it as in `emit`. The
rows are named by an index, so that those of a tree stay where they are.
"""

import triton
import triton.language as tl

from draftproof.kernels.device import LATE, recall, score, uniform, weigh
from draftproof.kernels.scan import begin, token_at
from draftproof.verify import optimal_binned

BINS: tl.constexpr = tl.constexpr(optimal_binned.BINS)
WIDTH: tl.constexpr = tl.constexpr(optimal_binned.WIDTH)
TINY: tl.constexpr = tl.constexpr(optimal_binned.TINY)
OFFSET: tl.constexpr = tl.constexpr(optimal_binned.OFFSET)
UNIT: tl.constexpr = tl.constexpr(1099511627776.0)  # 2 ** 40: masses are whole numbers of its inverse


@triton.jit
def pair(rows, law, draft, draft_law, index, b, ids):
    """p and q of tokens `ids`, and their bins."""
    n, m = tl.load(index[0] + b), tl.load(index[1] + b)
    inside = ids < rows.size
    p = weigh(law, score(rows, b, n, ids, inside), ids, recall(rows, law, b, n, n >= 0))
    q = weigh(draft_law, score(draft, b, m, ids, inside), ids, recall(draft, draft_law, b, m, m >= 0))
    place = tl.log(tl.maximum(p, TINY) / tl.maximum(q, TINY)) / WIDTH + OFFSET
    return p, q, tl.minimum(tl.maximum(place, 0.0), BINS - 0.5).to(tl.int32)


@triton.jit(do_not_specialize=["Q", "K"])
def fill(rows, law, draft, draft_law, index, masses, points, seen, Q, K, TILE: tl.constexpr, KP: tl.constexpr):
    """Masses [B, 2, BINS] of p and q, whole numbers so that their order is nothing; p, q and bin of each guess."""
    b = (tl.program_id(0) // Q).to(tl.int64)
    c = tl.program_id(0) % Q
    for t in range(c, tl.cdiv(rows.size, TILE), Q):
        ids = t * TILE + tl.arange(0, TILE)
        p, q, place = pair(rows, law, draft, draft_law, index, b, ids)
        tl.atomic_add(masses + 2 * b * BINS + place, (p * UNIT).to(tl.int64), mask=p > 0, sem="relaxed")
        tl.atomic_add(masses + (2 * b + 1) * BINS + place, (q * UNIT).to(tl.int64), mask=q > 0, sem="relaxed")
    if c == 0:
        k = tl.arange(0, KP)
        x = tl.load(rows.tokens + b * K + k, mask=k < K, other=-1)
        p, q, place = pair(rows, law, draft, draft_law, index, b, tl.where(x < 0, LATE, x))
        tl.store(points + 2 * b * K + k, p, mask=k < K)
        tl.store(points + (2 * b + 1) * K + k, q, mask=k < K)
        tl.store(seen + b * K + k, place.to(tl.int64), mask=k < K)


@triton.jit
def left(rows, law, draft, draft_law, index, share, b, ids, K, bare):
    """(p - a)+ of tokens that were not guessed; p if bare."""
    p, q, place = pair(rows, law, draft, draft_law, index, b, ids)
    rest = tl.maximum(p - q * tl.where(bare, 0.0, tl.load(share + b * BINS + place)), 0.0)
    for k in range(K):
        rest = tl.where(ids == tl.load(rows.tokens + b * K + k), 0.0, rest)
    return rest


@triton.jit(do_not_specialize=["Q", "K", "E"])
def leave(rows, law, draft, draft_law, index, share, sums, Q, K, E, TILE: tl.constexpr, CHUNK: tl.constexpr):
    """Sums [B, E] of what is left in each chunk of tokens."""
    b = (tl.program_id(0) // Q).to(tl.int64)
    chunk = tl.arange(0, TILE // CHUNK)
    for t in range(tl.program_id(0) % Q, tl.cdiv(rows.size, TILE), Q):
        ids = t * TILE + chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
        rest = left(rows, law, draft, draft_law, index, share, b, ids, K, b < 0)
        tl.store(sums + b * E + t * (TILE // CHUNK) + chunk, tl.sum(rest, 1))


@triton.jit(do_not_specialize=["K", "E"])
def draw_left(rows, law, draft, draft_law, index, share, sums, state, out, K, E, CHUNK: tl.constexpr, EP: tl.constexpr):
    """The token of each sequence at which what is left, cumulated, first exceeds u times its total."""
    b = tl.program_id(0).to(tl.int64)
    u = uniform(state, b, state.lane, 0)
    c = tl.arange(0, EP)
    parts = tl.load(sums + b * E + c, mask=c < E, other=0.0).to(tl.float64)
    o, end, running, threshold, bare = begin(parts, u, rows.size, CHUNK)
    token, final = o * 0 + LATE, o * 0
    while (o < end) & (token == LATE):
        ids = o + tl.arange(0, CHUNK)
        part = left(rows, law, draft, draft_law, index, share, b, ids, K, bare).to(tl.float64)
        token, furthest, running = token_at(ids, part, running, threshold)
        final = tl.maximum(final, furthest)
        o += CHUNK
    tl.store(out + b, tl.minimum(token, final).to(tl.int64))
