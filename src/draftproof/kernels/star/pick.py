# mypy: ignore-errors
"""Several guesses after one node: the passes over its rows p and q that a pick among them needs (2502.18779).

The first pass adds up both laws in bins of p/q. A plan (`hull`) then says which share of q the pick's law a has in each
bin. The second pass sums what is left, (p - a)+ outside the guesses, over chunks. At the end one program a sequence
makes the law of the outcome and draws from it; a token instead of a guess is drawn from what is left as in `emit`. The
rows are named by an index, so that those of a tree stay where they are.
"""

import triton
import triton.language as tl

from draftproof.kernels.lib.inverse_cdf import begin, chunk_at, token_at
from draftproof.kernels.lib.rows import LATE, recall, score, uniform, weigh
from draftproof.kernels.tree.traversal import capped
from draftproof.verify import optimal_binned

BINS: tl.constexpr = tl.constexpr(optimal_binned.BINS)
WIDTH: tl.constexpr = tl.constexpr(optimal_binned.WIDTH)
TINY: tl.constexpr = tl.constexpr(optimal_binned.TINY)
OFFSET: tl.constexpr = tl.constexpr(optimal_binned.OFFSET)
# 2 ** 60: masses are whole numbers of its inverse, so small that what a bin loses to rounding does not move its ratio
UNIT: tl.constexpr = tl.constexpr(1152921504606846976.0)


@triton.jit
def pair(rows, law, draft, draft_law, index, b, ids):
    """p and q of tokens `ids`, and their bins. A row without a law weighs nothing, whatever it holds."""
    n, m = tl.load(index[0] + b), tl.load(index[1] + b)
    inside = ids < rows.size
    ours, theirs = recall(rows, law, b, n, n >= 0), recall(draft, draft_law, b, m, m >= 0)
    p = tl.where(ours[1] > 0, weigh(law, score(rows, b, n, ids, inside), ids, ours), 0.0)
    q = tl.where(theirs[1] > 0, weigh(draft_law, score(draft, b, m, ids, inside), ids, theirs), 0.0)
    place = tl.log(tl.maximum(p, TINY) / tl.maximum(q, TINY)) / WIDTH + OFFSET
    return p, q, tl.minimum(tl.maximum(place, 0.0), BINS - 0.5).to(tl.int32)


@triton.jit(do_not_specialize=["Q", "K"])
def fill(rows, law, draft, draft_law, index, room, Q, K, TILE: tl.constexpr, KP: tl.constexpr):
    """Masses [B, 2, BINS] of p and q, whole numbers so that their order is nothing; and what is known of each guess."""
    b = (tl.program_id(0) // Q).to(tl.int64)
    c = tl.program_id(0) % Q
    for t in range(c, tl.cdiv(rows.size, TILE), Q):
        ids = t * TILE + tl.arange(0, TILE)
        p, q, place = pair(rows, law, draft, draft_law, index, b, ids)
        tl.atomic_add(room.masses + 2 * b * BINS + place, (p * UNIT).to(tl.int64), mask=p > 0, sem="relaxed")
        tl.atomic_add(room.masses + (2 * b + 1) * BINS + place, (q * UNIT).to(tl.int64), mask=q > 0, sem="relaxed")
    if c == 0:
        look_up(rows, law, draft, draft_law, index, room, b, K, KP)


@triton.jit
def look_up(rows, law, draft, draft_law, index, room, b, K, KP: tl.constexpr):
    """p, q and bin of each guess, -1 for one that counts as not drawn, and the fault."""
    k = tl.arange(0, KP)
    x = tl.load(rows.tokens + b * K + k, mask=k < K, other=-1)
    ours = tl.load(law.scale + b * law.stride + tl.load(index[0] + b))
    theirs = tl.load(draft_law.scale + b * draft_law.stride + tl.load(index[1] + b))
    inside = (x >= 0) & (x < rows.size)
    guess = tl.where(theirs > 0, tl.where(inside, x, -1), -1)
    drawn = guess >= 0
    p, q, place = pair(rows, law, draft, draft_law, index, b, tl.where(drawn, guess, LATE))
    tl.store(room.p + b * K + k, p, mask=k < K)
    tl.store(room.q + b * K + k, q, mask=k < K)
    tl.store(room.guess + b * K + k, guess, mask=k < K)
    tl.store(room.place + b * K + k, tl.where(drawn, place, -1), mask=k < K)
    fault = tl.where(ours > 0, 0, 1)
    fault += tl.where(tl.sum((x >= rows.size).to(tl.int32), 0) > 0, 2, 0)
    fault += tl.where(tl.sum((inside & (guess < 0)).to(tl.int32), 0) > 0, 4, 0)
    fault += tl.where(tl.sum((drawn & (q == 0)).to(tl.int32), 0) > 0, 8, 0)
    tl.store(room.fault + b, fault)


@triton.jit
def left(rows, law, draft, draft_law, index, room, b, ids, K, bare):
    """(p - a)+ of tokens that were not guessed; p of all tokens if bare."""
    p, q, place = pair(rows, law, draft, draft_law, index, b, ids)
    share = tl.load(room.share + b * BINS + place).to(tl.float32)
    rest = tl.maximum(p - q * tl.where(bare, 0.0, share), 0.0)
    for k in range(K):
        rest = tl.where(ids == tl.where(bare, -1, tl.load(room.guess + b * K + k)), 0.0, rest)
    return rest


@triton.jit(do_not_specialize=["Q", "K", "E"])
def leave(rows, law, draft, draft_law, index, room, Q, K, E, TILE: tl.constexpr, CHUNK: tl.constexpr):
    """Sums [B, E] of what is left in each chunk of tokens."""
    b = (tl.program_id(0) // Q).to(tl.int64)
    chunk = tl.arange(0, TILE // CHUNK)
    for t in range(tl.program_id(0) % Q, tl.cdiv(rows.size, TILE), Q):
        ids = t * TILE + chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
        rest = left(rows, law, draft, draft_law, index, room, b, ids, K, b < 0)
        tl.store(room.sums + b * E + t * (TILE // CHUNK) + chunk, tl.sum(rest, 1))


@triton.jit(do_not_specialize=["K", "E"])
def close(
    rows, law, draft, draft_law, index, room, names, out, K, E, CHUNK: tl.constexpr, KP: tl.constexpr, EP: tl.constexpr
):  # fmt: skip
    """The outcome of each sequence: a guess, or the token at which what is left, cumulated, exceeds its uniform.

    A target row without a law has nothing to leave nor to accept: that is outcome 0 and token 0.
    """
    b = tl.program_id(0).to(tl.int64)
    n, c = tl.arange(0, KP), tl.arange(0, EP)
    at = b * K + n - 1  # outcome n is guess n - 1
    x = tl.load(room.guess + at, mask=(n > 0) & (n <= K), other=-1)
    parts = tl.load(room.sums + b * E + c, mask=c < E, other=0.0).to(tl.float64)
    chances = outcomes(room, b, at, x, tl.sum(parts, 0))
    child, _ = chunk_at(chances, uniform(names, b, 1, 0) * tl.sum(chances, 0))
    token = tl.sum(tl.where(n == child, x, 0), 0)
    if child == 0:
        u = uniform(names, b, 2, 0)
        o, end, running, threshold, bare = begin(parts, u, rows.size, CHUNK)
        found, final = o * 0 + LATE, o * 0
        while (o < end) & (found == LATE):
            ids = o + tl.arange(0, CHUNK)
            part = left(rows, law, draft, draft_law, index, room, b, ids, K, bare).to(tl.float64)
            found, furthest, running = token_at(ids, part, running, threshold)
            final = tl.maximum(final, furthest)
            o += CHUNK
        token = tl.minimum(found, final).to(tl.int64)
    tl.store(out[0] + b, child.to(tl.int64))
    tl.store(out[1] + b, token)


@triton.jit
def outcomes(room, b, at, x, rest):
    """[KP]: the law of the outcome: no guess, or one of them by the token rule on the pick or by a lucky hit.

    As verify._topdown: what is left over may hit a guess, and equal guesses count as the first of them.
    """
    n, drawn = tl.arange(0, x.shape[0]), x >= 0
    p = tl.load(room.p + at, mask=drawn, other=0.0).to(tl.float64)
    q = tl.load(room.q + at, mask=drawn, other=0.0).to(tl.float64)
    place = tl.load(room.place + at, mask=drawn, other=0)
    a = q * tl.load(room.share + b * BINS + place, mask=drawn, other=0.0)
    accept = tl.load(room.chosen + at, mask=drawn, other=0.0) * capped(p, a)
    same = (x[:, None] == x[None, :]) & drawn[:, None]  # [guesses, guesses]
    first = tl.min(tl.where(same, n[None, :], x.shape[0]), 1)
    hit = tl.where(first == n, tl.maximum(p - a, 0.0), 0.0)
    total = rest + tl.sum(hit, 0)
    lucky = tl.where(total > 0, hit / tl.where(total > 0, total, 1.0), tl.where(first == n, p, 0.0))
    merged = tl.sum(tl.where(first[:, None] == n[None, :], accept[:, None], 0.0), 0)
    merged += tl.maximum(1.0 - tl.sum(accept, 0), 0.0) * lucky
    return tl.where(n == 0, tl.maximum(1.0 - tl.sum(merged, 0), 0.0), merged)
