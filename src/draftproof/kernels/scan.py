# mypy: ignore-errors
"""Inversion of a cumulated law by the sums of its chunks: first the chunk that a number falls into, then the token."""

import triton
import triton.language as tl

from draftproof.kernels.device import LATE


@triton.jit
def chunk_at(parts, threshold):
    """The chunk in which the cumulated sums [EP] first exceed the threshold, and the sum before it."""
    c = tl.arange(0, parts.shape[0])
    last = tl.max(tl.where(parts > 0, c, 0), 0)  # u * total may round up to total
    sums = tl.cumsum(parts, 0)
    before = (sums <= threshold) & (c < last)
    return tl.sum(before.to(tl.int32), 0), tl.max(tl.where(before, sums, 0.0), 0)


@triton.jit
def token_at(ids, part, running, threshold):
    """The first token at which `running` plus the cumulated masses exceeds the threshold, LATE for none; the last one
    that has any mass."""
    reached = (running + tl.cumsum(part, 0) > threshold) & (part > 0)
    token = tl.min(tl.where(reached, ids, LATE), 0)
    return token, tl.max(tl.where(part > 0, ids, 0), 0)


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
