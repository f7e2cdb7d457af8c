# mypy: ignore-errors
"""Draw the children of tree nodes one after another without replacement, from the law of their parent's row."""

import triton
import triton.language as tl

from draftproof.kernels.lib.codes import DRAFT_LANE
from draftproof.kernels.lib.inverse_cdf import chunk_at, token_at
from draftproof.kernels.lib.laws import load_law, probability
from draftproof.kernels.lib.pdl import launch_dependents, wait
from draftproof.kernels.lib.rows import load_scores
from draftproof.kernels.lib.uniform import uniform


@triton.jit(do_not_specialize=["width", "parts", "chunks"])
def sum_law(
    rows, laws, sums_ptr, width, parts, chunks, TILE: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Sums [B, width, chunks] of each row's law over chunks of tokens; `parts` programs share a row."""
    launch_dependents(PDL)
    row = (tl.program_id(0) // parts).to(tl.int64)
    b, n = row // width, row % width
    chunk = tl.arange(0, TILE // CHUNK)
    wait(PDL)
    law = load_law(rows, laws, b, n, n >= 0)
    for t in range(tl.program_id(0) % parts, tl.cdiv(rows.vocabulary, TILE), parts):
        ids = t * TILE + chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
        q = probability(laws, load_scores(rows, b, n, ids, ids < rows.vocabulary), ids, law)
        tl.store(sums_ptr + row * chunks + t * (TILE // CHUNK) + chunk, tl.sum(q, 1))


@triton.jit(do_not_specialize=["width", "N", "K", "chunks"])
def draw_children(
    rows, laws, noise, parents_ptr, child_ptr, tokens_ptr, sums_ptr, width, N, K, chunks,
    CHUNK: tl.constexpr, BLOCK_CHUNKS: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The children of one node, into their places in tokens [B, N].

    Once a token is drawn, its chunk is summed again without it: subtracting its mass from the sum would leave rounding
    where nothing is left.
    """
    launch_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    b, n = row // width, row % width
    parent = tl.load(parents_ptr + n)
    c, k = tl.arange(0, BLOCK_CHUNKS), tl.arange(0, BLOCK_K)
    wait(PDL)
    law = load_law(rows, laws, b, n, n >= 0)
    parent_drawn = tl.load(tokens_ptr + b * N + parent, mask=parent > 0, other=0) >= 0
    usable = tl.where(parent_drawn & (law.scale > 0), chunks, 0)  # without chunks nothing is drawn
    sums = tl.load(sums_ptr + row * chunks + c, mask=c < usable, other=0.0).to(tl.float64)
    drawn = tl.full((BLOCK_K,), -1, tl.int32)
    for i in range(K):
        node = tl.load(child_ptr + parent * K + i)
        if node >= 0:
            total = tl.sum(sums, 0)
            threshold = uniform(noise, b, DRAFT_LANE, node) * total
            chunk, running = chunk_at(sums, threshold)
            ids = chunk * CHUNK + tl.arange(0, CHUNK)
            q = probability(laws, load_scores(rows, b, n, ids, ids < rows.vocabulary), ids, law)
            again = tl.max((ids[:, None] == drawn[None, :]).to(tl.int32), 1)
            q = tl.where(again > 0, 0.0, q).to(tl.float64)
            token, final, _total = token_at(ids, q, running, threshold)
            token = tl.where(total > 0, tl.minimum(token, final), -1)
            chunk = tl.where(total > 0, chunk, -1)
            tl.store(tokens_ptr + b * N + node, token.to(tl.int64))
            drawn = tl.where(k == i, token, drawn)
            sums = tl.where(c == chunk, tl.sum(tl.where(ids == token, 0.0, q), 0), sums)
