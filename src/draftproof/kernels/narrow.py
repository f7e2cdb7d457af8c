# mypy: ignore-errors
"""Which node block verification (2403.10444) stops at, mostly settled by a few tokens of each row.

Node n is taken with h = Z / (Z + 1 - w), where Z, the sum of the excess (w p - q)+, is w less the overlap of w p and q.
A few large tokens bound it from both sides: by their own excess and by their own overlap.
"""

import triton
import triton.language as tl

from draftproof.kernels.device import recall, score, weigh

DOUBT: tl.constexpr = tl.constexpr(1e-5)  # far above the rounding of a sum


@triton.jit
def narrow(
    rows, law, draft, draft_law, stats, b, v, numbers, weights, low, high, N, S,
    NP: tl.constexpr, LANE: tl.constexpr, W: tl.constexpr, WP: tl.constexpr,
):  # fmt: skip
    """Of the nodes low to high, all open: the last accepted one or -1, and the lowest and highest that are left."""
    n = tl.arange(0, NP)
    asked = (n > low) & (n <= high)  # the lowest is taken if no other is
    least, most = bounds(rows, law, draft, draft_law, stats, b, numbers, weights, asked, N, S, NP, LANE, W, WP)
    # of each node, the smallest and the largest probability not to be taken, and not to be taken nor any after it
    end = tl.where(n == high + 1, 1.0 - weights, 1.0)
    never = tl.where(asked, 1.0 - most / (most + 1.0 - weights), end)
    ever = tl.where(asked, 1.0 - least / (least + 1.0 - weights), end)
    below, above = tl.cumprod(never, 0, reverse=True), tl.cumprod(ever, 0, reverse=True)
    possible = asked & (v >= below) & (v * ever < above)
    rest = v < tl.min(tl.where(asked, above, 1.0), 0)
    last = tl.where(rest, low, tl.min(tl.where(possible, n, NP), 0))
    sole = tl.sum(possible.to(tl.int32), 0) + rest.to(tl.int32) == 1
    return tl.where(sole, last, -1), last, tl.where(sole, last, high)


@triton.jit
def bounds(
    rows, law, draft, draft_law, stats, b, numbers, weights, asked, N, S,
    NP: tl.constexpr, LANE: tl.constexpr, W: tl.constexpr, WP: tl.constexpr,
):  # fmt: skip
    """The least and the most that Z can be, [NP], from the tokens beside each part's largest."""
    n = tl.arange(0, NP)
    c = tl.arange(0, WP)
    there = asked[:, None] & (c < S * W)[None, :]
    place = tl.load(stats.crest + (b * N + n[:, None]) * S * W + c[None, :], mask=there, other=0)
    ids = place[:, :, None] * LANE + tl.arange(0, LANE)[None, None, :]
    inside = ids < tl.where(there, rows.size, 0)[:, :, None]
    p = mass(rows, law, b, n[:, None, None], ids, inside, numbers, weights.to(tl.float32))
    q = mass(draft, draft_law, b, n[:, None, None], ids, inside, recall(draft, draft_law, b, n, asked), 1.0)
    over = tl.sum(tl.sum(tl.maximum(p - q, 0.0), 2), 1).to(tl.float64)
    shared = tl.sum(tl.sum(tl.minimum(p, q), 2), 1).to(tl.float64)
    return tl.maximum(over - DOUBT, 0.0), tl.maximum(weights - shared, 0.0) + DOUBT


@triton.jit
def mass(rows, law, b, n, ids, inside, numbers, factor):
    """A law times a factor at tokens ids [NP, WP, LANE], by the numbers [NP] of `recall`."""
    shift, scale, cutoff, first, rate, greedy = numbers
    wide = shift[:, None, None], (scale * factor)[:, None, None], cutoff[:, None, None], first[:, None, None]
    return weigh(law, score(rows, b, n, ids, inside), ids, (wide[0], wide[1], wide[2], wide[3], rate, greedy))
