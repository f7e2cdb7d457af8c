# mypy: ignore-errors
"""Find the cutoff of a row with many candidates by a search on the bits of their scores.

Bits are ordered as the scores are, so the k-th largest score, or the one with a share of the mass above it, takes a few
passes over the candidates, however many there are.
"""

import triton
import triton.language as tl

from draftproof.kernels.lib.codes import NO_TOKEN
from draftproof.kernels.lib.rows import load_scores

WAYS: tl.constexpr = tl.constexpr(8)  # parts into which every pass of a search divides the range that is left


@triton.jit
def key(s, SHIFT: tl.constexpr):
    """An integer ordered as the float32 s; the SHIFT low bits, which no score of the logits' type uses, are dropped."""
    bits = tl.where(s == 0, 0.0, s).to(tl.int32, bitcast=True)  # -0.0 equals 0.0
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT


@triton.jit
def unkey(k, SHIFT: tl.constexpr):
    """The float32 of a key."""
    full = (k << SHIFT) | ((k >> 31) & ((1 << SHIFT) - 1))
    return (full ^ ((full >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def midpoint(low, high):
    """Halfway, rounded up, without overflow."""
    return (low | high) - ((low ^ high) >> 1)


@triton.jit
def search_cutoff(
    rows, lists, measured, limits, floor, listed, count, norm,
    SHIFT: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Cutoff, first id and normaliser of a row with any number of candidates.

    Three searches of one form, for the lowest value that fits: the k-th largest score; the score with less than top-p
    of the mass above it; the score that min-p keeps. Every pass narrows the range to an eighth.
    """
    k, top_p, min_p, peak, shift, rate = (
        limits.top_k, limits.top_p, limits.min_p, measured.peak, measured.shift, measured.rate,
    )  # fmt: skip
    cutoff, ties_cut = floor, floor * 0
    top = key(peak, SHIFT)
    part = tl.arange(0, WAYS)
    for search in range(3):
        if ((search == 0) & (k > 0)) | ((search == 1) & (top_p < 1)) | ((search == 2) & (min_p > 0)):
            low = cutoff.to(tl.int64)
            high = top.to(tl.int64)
            while low < high:
                step = (high - low + WAYS - 1) // WAYS
                levels = tl.minimum(low + (part + 1) * step - 1, high).to(tl.int32)
                number, mass = sum_above(rows, lists, measured, listed, count, levels, SHIFT, TILE, GROUP)
                light = tl.exp2((unkey(levels, SHIFT) - peak) * rate) < min_p
                too_low = ((search == 0) & (number >= k)) | ((search == 1) & (mass >= top_p * norm))
                too_low = too_low | ((search == 2) & light)
                low = tl.minimum(low + tl.sum(too_low.to(tl.int32), 0) * step, high)
                high = tl.minimum(low + step - 1, high)
            level = low.to(tl.int32)
            number, mass = sum_above(rows, lists, measured, listed, count, level - (part == 1), SHIFT, TILE, GROUP)
            above = tl.sum(tl.where(part == 0, mass, 0.0), 0)
            if search == 1:
                tied = tl.sum(tl.where(part == 1, number, tl.where(part == 0, -number, 0)), 0)
                ties_cut, norm = cut_ties(unkey(level, SHIFT), above, tied, shift, norm, rate, top_p)
            elif (search == 0) | (level > cutoff) | ((top_p == 1) & (k == 0)):
                ties_cut = ties_cut * 0
                norm = tl.sum(tl.where(part == 1, mass, 0.0), 0)
            cutoff = tl.maximum(level, cutoff)
    first = ties_cut * 0
    if ties_cut > 0:
        first = nth_tie(rows, lists, measured, listed, count, unkey(cutoff, SHIFT), ties_cut, TILE, GROUP)
    return unkey(cutoff, SHIFT), first, norm


@triton.jit
def sum_above(
    rows, lists, measured, listed, count, levels,
    SHIFT: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Number and mass of the candidates above each of a few levels."""
    number = levels * 0
    mass = number.to(tl.float64)
    for start in range(0, count, TILE):
        _, s = load_candidates(rows, lists, measured, listed, count, start, TILE, GROUP)
        higher = key(s, SHIFT)[:, None] > levels[None, :]
        weights = tl.exp2(tl.fma(s, measured.rate, -measured.shift))
        number += tl.sum(higher.to(tl.int32), 0)
        mass += tl.sum(tl.where(higher, weights[:, None], 0.0).to(tl.float64), 0)
    return number, mass


@triton.jit
def load_candidates(rows, lists, measured, listed, count, start, TILE: tl.constexpr, GROUP: tl.constexpr):
    """Ids and scores of TILE candidates: from the list of tokens if there is one, else from the listed groups."""
    i = start + tl.arange(0, TILE)
    mask = i < count
    if listed:
        ids = tl.load(lists.ids_ptr + measured.row * lists.capacity + i, mask=mask, other=0)
        s = tl.load(lists.scores_ptr + measured.row * lists.capacity + i, mask=mask, other=float("-inf"))
    else:
        ids = tl.load(lists.groups_ptr + measured.row * lists.limit + i // GROUP, mask=mask, other=0) + i % GROUP
        s = load_scores(rows, measured.b, measured.n, ids, mask & (ids < rows.vocabulary))
    return ids, s


@triton.jit
def cut_ties(cutoff, above, tied, shift, norm, rate, top_p):
    """How many of the `tied` scores at top-p's cutoff are cut, as many as fit into the mass to cut; the new normaliser.

    `above` is the mass of the scores above the cutoff.
    """
    each = tl.exp2(tl.fma(cutoff, rate, -shift)).to(tl.float64)
    spare = tl.floor(((1.0 - top_p) * norm - (norm - above - tied * each)) / tl.maximum(each, 1e-300))
    ties_cut = tl.minimum(tl.maximum(spare, 0.0), tl.maximum(tied - 1, 0).to(tl.float64)).to(tl.int32)
    return ties_cut, above + (tied - ties_cut) * each


@triton.jit
def nth_tie(rows, lists, measured, listed, count, cutoff, ties_cut, TILE: tl.constexpr, GROUP: tl.constexpr):
    """Of the candidates at the cutoff, whose ids ascend, the id of the one after the first `ties_cut`."""
    first = ties_cut * 0 + NO_TOKEN
    passed = ties_cut * 0
    for start in range(0, count, TILE):
        ids, s = load_candidates(rows, lists, measured, listed, count, start, TILE, GROUP)
        order = passed + tl.cumsum((s == cutoff).to(tl.int32), 0)
        first = tl.minimum(first, tl.min(tl.where((s == cutoff) & (order > ties_cut), ids, NO_TOKEN), 0))
        passed = tl.max(order, 0)
    return first
