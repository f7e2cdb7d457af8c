# mypy: ignore-errors
"""Children of nodes, drawn one after another without replacement from the law of their row."""

import triton
import triton.language as tl

from draftproof.kernels.lib.inverse_cdf import chunk_at, token_at
from draftproof.kernels.lib.rows import next_may_begin, recall, score, uniform, wait, weigh


@triton.jit(do_not_specialize=["W", "Q", "E"])
def share(rows, law, sums, W, Q, E, TILE: tl.constexpr, CHUNK: tl.constexpr, EARLY: tl.constexpr):
    """Sums [B, W, E] of each row's law over chunks of tokens; Q programs a row."""
    next_may_begin(EARLY)
    row = (tl.program_id(0) // Q).to(tl.int64)
    b, n = row // W, row % W
    chunk = tl.arange(0, TILE // CHUNK)
    wait(EARLY)
    numbers = recall(rows, law, b, n, n >= 0)
    for t in range(tl.program_id(0) % Q, tl.cdiv(rows.size, TILE), Q):
        ids = t * TILE + chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
        q = weigh(law, score(rows, b, n, ids, ids < rows.size), ids, numbers)
        tl.store(sums + row * E + t * (TILE // CHUNK) + chunk, tl.sum(q, 1))


@triton.jit(do_not_specialize=["W", "N", "K", "E"])
def draw(
    rows, law, names, parents, child, tokens, sums, W, N, K, E,
    CHUNK: tl.constexpr, EP: tl.constexpr, KP: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The children of one node, into their places in tokens [B, N].

    Once a token is taken, its chunk is summed anew without it: taking its mass from the sum would leave rounding where
    nothing is left.
    """
    next_may_begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    b, n = row // W, row % W
    parent = tl.load(parents + n)
    c, k = tl.arange(0, EP), tl.arange(0, KP)
    wait(EARLY)
    numbers = recall(rows, law, b, n, n >= 0)
    known = tl.load(tokens + b * N + parent, mask=parent > 0, other=0) >= 0
    many = tl.where(known & (numbers[1] > 0), E, 0)  # else there is nothing to draw
    parts = tl.load(sums + row * E + c, mask=c < many, other=0.0).to(tl.float64)
    taken = tl.full((KP,), -1, tl.int32)
    for i in range(K):
        node = tl.load(child + parent * K + i)
        if node >= 0:
            total = tl.sum(parts, 0)
            threshold = uniform(names, b, 0, node) * total
            chunk, running = chunk_at(parts, threshold)
            ids = chunk * CHUNK + tl.arange(0, CHUNK)
            q = weigh(law, score(rows, b, n, ids, ids < rows.size), ids, numbers)
            elder = tl.max((ids[:, None] == taken[None, :]).to(tl.int32), 1)
            q = tl.where(elder > 0, 0.0, q).to(tl.float64)
            token, final, _all = token_at(ids, q, running, threshold)
            token = tl.where(total > 0, tl.minimum(token, final), -1)
            chunk = tl.where(total > 0, chunk, -1)
            tl.store(tokens + b * N + node, token.to(tl.int64))
            taken = tl.where(k == i, token, taken)
            parts = tl.where(c == chunk, tl.sum(tl.where(ids == token, 0.0, q), 0), parts)
