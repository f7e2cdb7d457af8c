# mypy: ignore-errors
"""Bound block verification (2403.10444) by a few large tokens of each row: mostly they settle where it stops.

Node n is accepted with h = Z / (Z + 1 - w), where Z, the sum of the residual (w p - q)+, is w less the overlap of w p
and q. The large tokens that the drafter has kept bound Z from both sides: by their own residual and their own overlap.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from draftproof.kernels.lib.codes import BLOCK_RULE
from draftproof.kernels.lib.laws import RowLaw, probability

MARGIN: tl.constexpr = tl.constexpr(1e-5)  # far above the rounding of a sum


class Crest(NamedTuple):
    """Large tokens of each draft row [BLOCK_N, CREST], -1 for none, and their scores."""

    ids: Any
    draft_scores: Any
    target_scores: Any


@triton.jit
def load_crest(draft_laws, rule, b, N, BLOCK_N: tl.constexpr, CREST: tl.constexpr):
    """The drafter's large tokens [BLOCK_N, CREST] of each node and their scores there; for block verification alone."""
    n = tl.arange(0, BLOCK_N)[:, None]
    i = (b * draft_laws.stride + n) * CREST + tl.arange(0, CREST)[None, :]
    wanted = n < tl.where(rule == BLOCK_RULE, N - 1, 0)
    ids = tl.load(draft_laws.crest_ptr + i, mask=wanted, other=-1)
    return ids, tl.load(draft_laws.height_ptr + i, mask=wanted, other=float("-inf"))


@triton.jit
def narrow(n, v, laws, draft_laws, crest, p_law, q_law, weights, low, high):
    """Of the nodes low to high, all open: the last accepted one or -1, and the lowest and highest that stay open."""
    asked = (n > low) & (n <= high)  # the lowest is accepted if no other is
    p = probability(laws, crest.target_scores, crest.ids, column(p_law, weights.to(tl.float32)))
    q = tl.where(crest.ids < 0, 0.0, probability(draft_laws, crest.draft_scores, crest.ids, column(q_law, 1.0)))
    residual, overlap = tl.reduce((tl.maximum(p - q, 0.0), tl.minimum(p, q)), 1, add_two)
    least = tl.maximum(residual.to(tl.float64) - MARGIN, 0.0)
    most = tl.maximum(weights - overlap.to(tl.float64), 0.0) + MARGIN
    # of each node, bounds of the probability that it is rejected, and that it and all nodes after it are
    end = tl.where(n == high + 1, 1.0 - weights, 1.0)
    rejected_least = tl.where(asked, 1.0 - most / (most + 1.0 - weights), end)
    rejected_most = tl.where(asked, 1.0 - least / (least + 1.0 - weights), end)
    below, above = tl.associative_scan((rejected_least, rejected_most), 0, multiply_two, reverse=True)
    possible = asked & (v >= below) & (v * rejected_most < above)
    none = v < tl.min(tl.where(asked, above, 1.0), 0)
    last = tl.where(none, low, tl.min(tl.where(possible, n, high), 0))  # by rounding no node may be possible
    sole = tl.sum(possible.to(tl.int32), 0) + none.to(tl.int32) == 1
    return tl.where(sole, last, -1), last, tl.where(sole, last, high)


@triton.jit
def column(law, factor):
    """Laws [BLOCK_N] times a factor, shaped to stand beside tokens [BLOCK_N, CREST]."""
    scale = law.scale * factor
    return RowLaw(
        law.shift[:, None], scale[:, None], law.cutoff[:, None], law.first[:, None], law.rate, law.greedy
    )  # fmt: skip


@triton.jit
def add_two(a, b, c, d):
    """Two sums in one reduction."""
    return a + c, b + d


@triton.jit
def multiply_two(a, b, c, d):
    """Two products in one scan."""
    return a * c, b * d
