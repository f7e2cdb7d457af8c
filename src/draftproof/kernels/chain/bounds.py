# mypy: ignore-errors
"""Which node block verification (2403.10444) stops at, mostly settled by a few tokens of each row.

Node n is taken with h = Z / (Z + 1 - w), where Z, the sum of the excess (w p - q)+, is w less the overlap of w p and q.
The large tokens that the drafter has kept bound it from both sides: by their own excess and by their own overlap.
"""

import triton
import triton.language as tl

from draftproof.kernels.lib.rows import weigh

DOUBT: tl.constexpr = tl.constexpr(1e-5)  # far above the rounding of a sum


@triton.jit
def look(draft_law, rule, b, N, NP: tl.constexpr, C: tl.constexpr):
    """The drafter's large tokens [NP, C] of each node and their scores there; of block verification alone."""
    n = tl.arange(0, NP)[:, None]
    at = (b * draft_law.stride + n) * C + tl.arange(0, C)[None, :]
    asked = n < tl.where(rule == 1, N - 1, 0)
    ids = tl.load(draft_law.crest + at, mask=asked, other=-1)
    return ids, tl.load(draft_law.height + at, mask=asked, other=float("-inf"))


@triton.jit
def narrow(n, v, law, draft_law, ids, t, s, ours, theirs, weights, low, high):
    """Of the nodes low to high, all open: the last accepted one or -1, and the lowest and highest that are left.

    `ids` [NP, C] are large tokens with scores t in the drafter's row and s in the target's.
    """
    asked = (n > low) & (n <= high)  # the lowest is taken if no other is
    p = weigh(law, s, ids, column(ours, weights.to(tl.float32)))
    q = tl.where(ids < 0, 0.0, weigh(draft_law, t, ids, column(theirs, 1.0)))
    over, shared = tl.reduce((tl.maximum(p - q, 0.0), tl.minimum(p, q)), 1, both)
    least = tl.maximum(over.to(tl.float64) - DOUBT, 0.0)
    most = tl.maximum(weights - shared.to(tl.float64), 0.0) + DOUBT
    # of each node, the smallest and the largest probability not to be taken, and not to be taken nor any after it
    end = tl.where(n == high + 1, 1.0 - weights, 1.0)
    never = tl.where(asked, 1.0 - most / (most + 1.0 - weights), end)
    ever = tl.where(asked, 1.0 - least / (least + 1.0 - weights), end)
    below, above = tl.associative_scan((never, ever), 0, both_times, reverse=True)
    possible = asked & (v >= below) & (v * ever < above)
    rest = v < tl.min(tl.where(asked, above, 1.0), 0)
    last = tl.where(rest, low, tl.min(tl.where(possible, n, high), 0))  # by rounding there may be none
    sole = tl.sum(possible.to(tl.int32), 0) + rest.to(tl.int32) == 1
    return tl.where(sole, last, -1), last, tl.where(sole, last, high)


@triton.jit
def column(numbers, factor):
    """The numbers [NP] of `recall` as a column, for a law times a factor."""
    shift, scale, cutoff, first, rate, greedy = numbers
    scale = scale * factor
    return shift[:, None], scale[:, None], cutoff[:, None], first[:, None], rate, greedy


@triton.jit
def both(a, b, c, d):
    """Two sums in one reduction."""
    return a + c, b + d


@triton.jit
def both_times(a, b, c, d):
    """Two products in one scan."""
    return a * c, b * d
