# mypy: ignore-errors
"""Where many tokens may stay: the cutoff among any number of candidates by a search on the scores' bits.

These are as ordered as the scores, so the k-th largest score, or the one with a share of the mass above it, is found in
a few looks at the candidates, however many there are.
"""

import triton
import triton.language as tl

from draftproof.kernels.lib.rows import LATE, score

WAYS: tl.constexpr = tl.constexpr(8)  # into which a search divides what is left


@triton.jit
def key(s, SHIFT: tl.constexpr):
    """An integer as ordered as the float32 s; SHIFT low bits that no score of this type uses are left out."""
    bits = tl.where(s == 0, 0.0, s).to(tl.int32, bitcast=True)  # -0.0 equals 0.0
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT


@triton.jit
def unkey(k, SHIFT: tl.constexpr):
    """The float32 of a key."""
    full = (k << SHIFT) | ((k >> 31) & ((1 << SHIFT) - 1))
    return (full ^ ((full >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def upper(low, high):
    """Halfway, rounded up, without overflow."""
    return (low | high) - ((low ^ high) >> 1)


@triton.jit
def cut_many(
    rows, lists, row, b, n, floor, listed, count, peak, shift, norm, rate, k, share, least,
    SHIFT: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Cutoff, first id and normaliser of a row with any number of candidates.

    Three searches of one form, for the lowest value that fits: the k-th largest score; the score with less than
    `share` of the mass above it; the score that min-p lets stay. Every look narrows the range to an eighth.
    """
    cutoff, spare = floor, floor * 0
    top = key(peak, SHIFT)
    part = tl.arange(0, WAYS)
    for search in range(3):
        if ((search == 0) & (k > 0)) | ((search == 1) & (share < 1)) | ((search == 2) & (least > 0)):
            low = cutoff.to(tl.int64)
            high = top.to(tl.int64)
            while low < high:
                step = (high - low + WAYS - 1) // WAYS
                levels = tl.minimum(low + (part + 1) * step - 1, high).to(tl.int32)
                number, mass = above(
                    rows, lists, row, b, n, shift, rate, listed, count, levels, SHIFT, TILE, GROUP
                )  # fmt: skip
                light = tl.exp2((unkey(levels, SHIFT) - peak) * rate) < least
                short = ((search == 0) & (number >= k)) | ((search == 1) & (mass >= share * norm))
                short = short | ((search == 2) & light)
                low = tl.minimum(low + tl.sum(short.to(tl.int32), 0) * step, high)
                high = tl.minimum(low + step - 1, high)
            level = low.to(tl.int32)
            number, mass = above(
                rows, lists, row, b, n, shift, rate, listed, count, level - (part == 1), SHIFT, TILE, GROUP
            )  # fmt: skip
            over = tl.sum(tl.where(part == 0, mass, 0.0), 0)
            if search == 1:
                tied = tl.sum(tl.where(part == 1, number, tl.where(part == 0, -number, 0)), 0)
                spare, norm = share_ties(unkey(level, SHIFT), over, tied, shift, norm, rate, share)
            elif (search == 0) | (level > cutoff) | ((share == 1) & (k == 0)):
                spare = spare * 0
                norm = tl.sum(tl.where(part == 1, mass, 0.0), 0)
            cutoff = tl.maximum(level, cutoff)
    first = spare * 0
    if spare > 0:
        first = nth(rows, lists, row, b, n, listed, count, unkey(cutoff, SHIFT), spare, TILE, GROUP)
    return unkey(cutoff, SHIFT), first, norm


@triton.jit
def above(
    rows, lists, row, b, n, shift, rate, listed, count, levels,
    SHIFT: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Candidates above each of a few levels: their number and mass."""
    number = levels * 0
    mass = number.to(tl.float64)
    for start in range(0, count, TILE):
        _, s = candidates(rows, lists, row, b, n, listed, count, start, TILE, GROUP)
        higher = key(s, SHIFT)[:, None] > levels[None, :]
        weights = tl.exp2(tl.fma(s, rate, -shift))
        number += tl.sum(higher.to(tl.int32), 0)
        mass += tl.sum(tl.where(higher, weights[:, None], 0.0).to(tl.float64), 0)
    return number, mass


@triton.jit
def candidates(
    rows, lists, row, b, n, listed, count, start,
    TILE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Ids and scores of TILE candidates: by the list of tokens if there is one, else by live groups."""
    i = start + tl.arange(0, TILE)
    there = i < count
    if listed:
        ids = tl.load(lists.ids + row * lists.room + i, mask=there, other=0)
        s = tl.load(lists.scores + row * lists.room + i, mask=there, other=float("-inf"))
    else:
        ids = tl.load(lists.groups + row * lists.limit + i // GROUP, mask=there, other=0) + i % GROUP
        s = score(rows, b, n, ids, there & (ids < rows.size))
    return ids, s


@triton.jit
def share_ties(cutoff, over, tied, shift, norm, rate, share):
    """How many of the scores at the cutoff of top-p are cut, as many as fit into the mass to cut; the new normaliser.

    `over` is the mass above the cutoff.
    """
    each = tl.exp2(tl.fma(cutoff, rate, -shift)).to(tl.float64)
    rest = tl.floor(((1.0 - share) * norm - (norm - over - tied * each)) / tl.maximum(each, 1e-300))
    spare = tl.minimum(tl.maximum(rest, 0.0), tl.maximum(tied - 1, 0).to(tl.float64)).to(tl.int32)
    return spare, over + (tied - spare) * each


@triton.jit
def nth(
    rows, lists, row, b, n, listed, count, cutoff, spare,
    TILE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Of the candidates at the cutoff, whose ids ascend, the id of the one that follows the first `spare`."""
    found = spare * 0 + LATE
    seen = spare * 0
    for start in range(0, count, TILE):
        ids, s = candidates(rows, lists, row, b, n, listed, count, start, TILE, GROUP)
        order = seen + tl.cumsum((s == cutoff).to(tl.int32), 0)
        found = tl.minimum(found, tl.min(tl.where((s == cutoff) & (order > spare), ids, LATE), 0))
        seen = tl.max(order, 0)
    return found
