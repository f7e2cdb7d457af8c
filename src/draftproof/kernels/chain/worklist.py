# mypy: ignore-errors
"""Rows whose excess is wanted, each in a place of its own with all that is known of it.

So a program that sums a row, or draws from it, finds everything at once. The first row of sequence b, which mostly is
the only one, has place b; hence it is loaded before anything else of the sequence is known.
"""

import triton
import triton.language as tl

# What a row may be: q is that of the draft row; it was not measured; the drafter is greedy. 8 times its node is added.
DRAWN: tl.constexpr = tl.constexpr(1)
UNREAD: tl.constexpr = tl.constexpr(2)
GREEDY: tl.constexpr = tl.constexpr(4)


@triton.jit
def place_of(i, b, B, at, SPACIOUS: tl.constexpr):
    """The place of the i-th row of sequence b whose excess is wanted. SPACIOUS: there is one for every row; else the
    first B are for first rows, and others have the next that are free, `at` of which were taken before."""
    place = i * B + b
    if not SPACIOUS:
        place = tl.where(i == 0, b, B + at + i - 1)
    return place


@triton.jit
def keep(state, law, draft_law, b, n, N, low, high, at, row, SPACIOUS: tl.constexpr):
    """Write down rows low to high of sequence b, of all whose nodes `row` tells, and that others are not wanted."""
    drawn, late, hit, weights, ours, theirs = row
    there = (n >= low) & (n <= high)
    i = tl.where(n < low, n - low + N, n - low)
    out = state.places + 16 * place_of(i, b, tl.num_programs(0), at, SPACIOUS)
    kind = 8 * n + tl.where(drawn, DRAWN, 0) + tl.where(late, UNREAD, 0) + tl.where(theirs[5], GREEDY, 0)
    tl.store(out, tl.where(there, kind, -1), mask=(n < N) if SPACIOUS else there | (n == low))
    tl.store(out + 1, (n * 0 + b).to(tl.int32), mask=there)
    tl.store(out + 2, hit.to(tl.int32), mask=there)
    store_float(out + 3, weights.to(tl.float32), there)
    store_law(out + 4, law, ours, there)
    if draft_law.shift is not None:
        store_law(out + 9, draft_law, theirs, there)


@triton.jit
def store_law(out, law, numbers, there):
    """The numbers of `recall`, but for the last."""
    shift, scale, cutoff, first, rate, _greedy = numbers
    store_float(out, shift, there)
    store_float(out + 1, scale, there)
    store_float(out + 2, rate + shift * 0, there)
    if law.cutoff is not None:
        store_float(out + 3, cutoff, there)
    if law.first is not None:
        tl.store(out + 4, first, mask=there)


@triton.jit
def store_float(out, value, there):
    """A float32 among whole numbers."""
    tl.store(out, value.to(tl.int32, bitcast=True), mask=there)


@triton.jit
def row_of(state, law, draft_law, place):
    """Of the row that has a place: its kind, -1 if it is not wanted; its sequence; its laws p and q, the id that q is
    all on, -1 for none, and w."""
    at = state.places + 16 * place
    kind, b, hit = tl.load(at), tl.load(at + 1), tl.load(at + 2)
    w = tl.load(at + 3).to(tl.float32, bitcast=True)
    ours = load_law(at + 4, law, kind < 0)
    theirs = ours
    if draft_law.shift is not None:
        theirs = load_law(at + 9, draft_law, (kind & GREEDY) > 0)
    return kind, b.to(tl.int64), ours, theirs, hit, w


@triton.jit
def load_law(at, law, greedy):
    """The numbers of `recall`."""
    shift = tl.load(at).to(tl.float32, bitcast=True)
    scale = tl.load(at + 1).to(tl.float32, bitcast=True)
    rate = tl.load(at + 2).to(tl.float32, bitcast=True)
    cutoff, first = shift, tl.zeros((), tl.int32)
    if law.cutoff is not None:
        cutoff = tl.load(at + 3).to(tl.float32, bitcast=True)
    if law.first is not None:
        first = tl.load(at + 4)
    return shift, scale, cutoff, first, rate, greedy


@triton.jit
def weighted(row, bare):
    """The row of `row_of` with w p in place of p; if bare, with p alone. And whether q is that of the draft row."""
    kind, _b, ours, theirs, hit, w = row
    scale = ours[1] * tl.where(bare, 1.0, w)
    ours = ours[0], scale, ours[2], ours[3], ours[4], ours[5]
    return ours, theirs, ((kind & DRAWN) > 0) & ~bare, tl.where(bare, -1, hit)
