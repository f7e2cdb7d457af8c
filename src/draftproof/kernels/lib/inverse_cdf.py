# mypy: ignore-errors
"""Inverse-transform sampling from sums over chunks of tokens: find the chunk first, then the token in it."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from draftproof.kernels.lib.codes import NO_TOKEN


class ChunkSearch(NamedTuple):
    """Where to look for a token, and the threshold that the cumulated masses must exceed there."""

    start: Any  # the first id
    end: Any  # the id after the last
    running: Any  # the mass before `start`
    threshold: Any
    empty: Any  # whether no chunk has any mass


@triton.jit
def chunk_at(sums, threshold):
    """The chunk in which the cumulated sums first exceed the threshold, and the sum before it."""
    c = tl.arange(0, sums.shape[0])
    last = tl.max(tl.where(sums > 0, c, 0), 0)  # u * total may round up to total
    cumulated = tl.cumsum(sums, 0)
    before = (cumulated <= threshold) & (c < last)
    return tl.reduce((before.to(tl.int32), tl.where(before, cumulated, 0.0)), 0, sum_and_max)


@triton.jit
def sum_and_max(sum_a, max_a, sum_b, max_b):
    """A sum and a maximum in one reduction."""
    return sum_a + sum_b, tl.maximum(max_a, max_b)


@triton.jit
def token_at(ids, masses, running, threshold):
    """The first token at which `running` plus the cumulated masses exceeds the threshold, or NO_TOKEN; the last token
    that has any mass; and `running` plus all masses."""
    reached = (running + tl.cumsum(masses, 0) > threshold) & (masses > 0)
    token, last, total = tl.reduce(
        (tl.where(reached, ids, NO_TOKEN), tl.where(masses > 0, ids, 0), masses), 0, min_max_and_sum
    )
    return token, last, running + total


@triton.jit
def min_max_and_sum(min_a, max_a, sum_a, min_b, max_b, sum_b):
    """A minimum, a maximum and a sum in one reduction."""
    return tl.minimum(min_a, min_b), tl.maximum(max_a, max_b), sum_a + sum_b


@triton.jit
def search_chunks(sums, u, vocabulary, CHUNK: tl.constexpr):
    """Where the cumulated masses, whose chunks have these sums, exceed u times their total.

    Without any mass, which only rounding makes possible, the caller draws from p instead, as law.residual does: the
    whole vocabulary is searched then, for a total of 1.
    """
    total = tl.sum(sums, 0)
    empty = total <= 0
    threshold = u * tl.where(empty, 1.0, total)
    chunk, running = chunk_at(sums, threshold)
    start = tl.where(empty, 0, chunk * CHUNK)
    end = tl.where(empty, vocabulary, start + CHUNK)
    return ChunkSearch(start, end, tl.where(empty, 0.0, running), threshold, empty)


@triton.jit
def multiply(a, b):
    """A product, for reductions."""
    return a * b
