# mypy: ignore-errors
"""Inversion of a cumulated law by the sums of its chunks: first the chunk that a number falls into, then the token."""

import triton
import triton.language as tl

from draftproof.kernels.lib.rows import LATE


@triton.jit
def chunk_at(parts, threshold):
    """The chunk in which the cumulated sums [EP] first exceed the threshold, and the sum before it."""
    c = tl.arange(0, parts.shape[0])
    last = tl.max(tl.where(parts > 0, c, 0), 0)  # u * total may round up to total
    sums = tl.cumsum(parts, 0)
    before = (sums <= threshold) & (c < last)
    return tl.reduce((before.to(tl.int32), tl.where(before, sums, 0.0)), 0, counted)


@triton.jit
def counted(a, high_a, b, high_b):
    """How many, and the highest: one reduction for both."""
    return a + b, tl.maximum(high_a, high_b)


@triton.jit
def token_at(ids, part, running, threshold):
    """The first token at which `running` plus the cumulated masses exceeds the threshold, LATE for none; the last one
    that has any mass; and the masses' sum with what ran before."""
    reached = (running + tl.cumsum(part, 0) > threshold) & (part > 0)
    token, last, total = tl.reduce((tl.where(reached, ids, LATE), tl.where(part > 0, ids, 0), part), 0, spanned)
    return token, last, running + total


@triton.jit
def spanned(first_a, last_a, sum_a, first_b, last_b, sum_b):
    """The first, the last and the sum: one reduction for all."""
    return tl.minimum(first_a, first_b), tl.maximum(last_a, last_b), sum_a + sum_b


@triton.jit
def begin(parts, u, size, CHUNK: tl.constexpr):
    """Where to look for the token at which masses, whose chunks have sums `parts` [EP], exceed u times their total: the
    first id and the last, the sum before it, the threshold, and whether all chunks are bare of mass.

    That has probability zero but for rounding: p stands in then, as in law.residual, and is looked at as a whole.
    """
    total = tl.sum(parts, 0)
    bare = total <= 0
    threshold = u * tl.where(bare, 1.0, total)
    chunk, running = chunk_at(parts, threshold)
    start = tl.where(bare, 0, chunk * CHUNK)
    end = tl.where(bare, size, start + CHUNK)
    return start, end, tl.where(bare, 0.0, running), threshold, bare


@triton.jit
def times(a, b):
    """A product, for a reduction."""
    return a * b
