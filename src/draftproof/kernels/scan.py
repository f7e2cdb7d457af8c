# mypy: ignore-errors
"""Inversion of a cumulated law by the sums of its chunks: first the chunk that a number falls into, then the token."""

import triton
import triton.language as tl

from draftproof.kernels.device import LATE


@triton.jit
def chunk_at(parts, threshold):
    """The chunk in which the cumulated sums [EP] first exceed the threshold, and the sum before it."""
    c = tl.arange(0, parts.shape[0])
    chunk = tl.sum((tl.cumsum(parts, 0) <= threshold).to(tl.int32), 0)
    chunk = tl.minimum(chunk, tl.max(tl.where(parts > 0, c, 0), 0))  # u * total may round up to total
    return chunk, tl.sum(tl.where(c < chunk, parts, 0.0), 0)


@triton.jit
def token_at(ids, part, running, threshold):
    """The first token at which `running` plus the cumulated masses exceeds the threshold, LATE for none; the last one
    that has any mass."""
    reached = (running + tl.cumsum(part, 0) > threshold) & (part > 0)
    token = tl.min(tl.where(reached, ids, LATE), 0)
    return token, tl.max(tl.where(part > 0, ids, 0), 0)
