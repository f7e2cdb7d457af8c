# mypy: ignore-errors
"""Fourth kernel: the excess (w p - q)+ of the rows that a draft may stop at, summed over chunks of the vocabulary.

A row whose candidates are listed has one sum, which one program makes. The row after the last draft, read here for the
first time, has no law yet: its chunks count their tokens in powers of two of their own.
"""

import triton
import triton.language as tl

from draftproof.kernels.chain.residual import ids_of, listed, rest
from draftproof.kernels.chain.worklist import UNREAD, row_of, weighted
from draftproof.kernels.lib.rows import edit, lane_shift, next_may_begin, raw, score, slope, wait, weigh


@triton.jit(do_not_specialize=["B", "N", "Q", "E"])
def excess(
    rows, law, draft, draft_law, lists, state, B, N, Q, E,
    TILE: tl.constexpr, CHUNK: tl.constexpr, SPACIOUS: tl.constexpr, LAZY: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Part c of Q of the rows whose places are this program's turn."""
    next_may_begin(EARLY)
    c = tl.program_id(0) % Q
    k = tl.program_id(0) // Q
    # sequences from the last to the first, whose rows may still be in the cache
    place = tl.where(k < B, B - 1 - k, k)
    wait(EARLY)
    row = row_of(state, law, draft_law, place)  # before it is known whether there is one
    end = B * N if SPACIOUS else B + tl.load(state.work)
    while place < end:
        if row[0] >= 0:
            sum_row(rows, law, draft, draft_law, lists, state, row, place, c, N, Q, E, TILE, CHUNK, LAZY)
        k += tl.num_programs(0) // Q
        place = k
        row = row_of(state, law, draft_law, tl.minimum(k, end - 1))


@triton.jit
def sum_row(
    rows, law, draft, draft_law, lists, state, row, place, c, N, Q, E,
    TILE: tl.constexpr, CHUNK: tl.constexpr, LAZY: tl.constexpr,
):  # fmt: skip
    """Part c of Q of a row: the sums of its chunks and their total."""
    kind, b = row[0], row[1]
    n = kind // 8
    left = weighted(row, kind < 0)
    sums = state.sums + place.to(tl.int64) * E
    many = listed(lists, b * N + n)
    total = tl.zeros((TILE // CHUNK,), tl.float32)
    if many >= 0:
        if n % Q == c:
            total = sum_list(rows, law, draft, draft_law, lists, b, n, left, many, N, TILE, CHUNK)
            tl.store(sums, tl.sum(total, 0))
    elif (kind & UNREAD) > 0:
        if LAZY:
            begin(rows, state.shifts + b * E, sums, b, n, c, Q, TILE, CHUNK)
    elif left[2]:
        total = add_up(rows, law, draft, draft_law, sums, b, n, left, c, Q, draft.logits is not None, TILE, CHUNK)
    else:
        total = add_up(rows, law, draft, draft_law, sums, b, n, left, c, Q, False, TILE, CHUNK)
    tl.store(state.totals + place * Q + c, tl.sum(total, 0))


@triton.jit
def sum_list(
    rows, law, draft, draft_law, lists, b, n, row, many, N, TILE: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """The excess of a listed row, in the first of [C]."""
    total = tl.zeros((CHUNK,), tl.float32)
    for o in range(0, many, CHUNK):
        ids = ids_of(lists, b * N + n, many, o + tl.arange(0, CHUNK), many)
        total += rest(rows, law, draft, draft_law, b, n, row, ids)
    return tl.where(tl.arange(0, TILE // CHUNK) == 0, tl.sum(total, 0), 0.0)


@triton.jit
def tokens(t, TILE: tl.constexpr, CHUNK: tl.constexpr):
    """The ids [C, CHUNK] of tile t."""
    return t * TILE + tl.arange(0, TILE // CHUNK)[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]


@triton.jit
def tiles(size, c, Q, TILE: tl.constexpr):
    """The first tile of part c of Q, the end of those that are gone through one by one, and the end of all.

    The last is left out there if it is the row's and shorter, or the part's only one: so it is underway sooner.
    """
    each = tl.cdiv(tl.cdiv(size, TILE), Q)
    end = tl.minimum((c + 1) * each, tl.cdiv(size, TILE))
    return c * each, tl.where(each == 1, c, tl.minimum(end, size // TILE)), end


@triton.jit
def short_tile(size, start, full, end, TILE: tl.constexpr, CHUNK: tl.constexpr):
    """The ids of the tile that is left out, and which of them are there: none if no tile is."""
    ids = tokens(full, TILE, CHUNK)
    return ids, ids < tl.where((full < end) & (start < end), size, 0)


@triton.jit
def add_up(
    rows, law, draft, draft_law, sums, b, n, row, c, Q,
    DRAWN: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Store the sums of part c's chunks; their totals [C] over the tiles. DRAWN: q is that of a draft row."""
    start, full, end = tiles(rows.size, c, Q, TILE)
    i = tl.arange(0, TILE // CHUNK)
    total = tl.zeros((TILE // CHUNK,), tl.float32)
    last, short = short_tile(rows.size, start, full, end, TILE, CHUNK)
    rest = raw(rows, b, n, last, short)  # underway while the others are gone through
    theirs = rest
    if DRAWN:
        theirs = raw(draft, b, n, last, short)
    for t in tl.range(start, full, num_stages=3):
        ids = tokens(t, TILE, CHUNK)
        s = score(rows, b, n, ids, None)
        other = s
        if DRAWN:
            other = score(draft, b, n, ids, None)
        part = over(law, draft_law, row, ids, s, other, DRAWN)
        tl.store(sums + t * (TILE // CHUNK) + i, part)
        total += part
    if (full < end) & (start < end):
        s = edit(rows, rest, b, n, last, short)
        other = s
        if DRAWN:
            other = edit(draft, theirs, b, n, last, short)
        part = over(law, draft_law, row, last, s, other, DRAWN)
        tl.store(sums + full * (TILE // CHUNK) + i, part)
        total += part
    return total


@triton.jit
def over(law, draft_law, row, ids, s, other, DRAWN: tl.constexpr):
    """The excess of chunks [C, CHUNK] of tokens with these scores: `rest` without what the case does not need."""
    ours, theirs, _, hit = row
    left = weigh(law, s, ids, ours)
    if not DRAWN:
        left = tl.where(ids == hit, 0.0, left)
    else:
        left = tl.maximum(left - weigh(draft_law, other, ids, theirs), 0.0)
    return tl.sum(left, 1)


@triton.jit
def begin(rows, shifts, sums, b, n, c, Q, TILE: tl.constexpr, CHUNK: tl.constexpr):
    """Chunks of a row that was not measured: the sum of 2 ** (slope * score - shift), each with its shift."""
    start, full, end = tiles(rows.size, c, Q, TILE)
    i = tl.arange(0, TILE // CHUNK)
    rate, _ = slope(rows, b)
    last, short = short_tile(rows.size, start, full, end, TILE, CHUNK)
    rest = raw(rows, b, n, last, short)
    for t in tl.range(start, full, num_stages=3):
        shift, total = count(score(rows, b, n, tokens(t, TILE, CHUNK), None), rate)
        tl.store(shifts + t * (TILE // CHUNK) + i, shift)
        tl.store(sums + t * (TILE // CHUNK) + i, total)
    if (full < end) & (start < end):
        shift, total = count(edit(rows, rest, b, n, last, short), rate)
        tl.store(shifts + full * (TILE // CHUNK) + i, shift)
        tl.store(sums + full * (TILE // CHUNK) + i, total)


@triton.jit
def count(s, rate):
    """Shift and sum of chunks [C, CHUNK] of scores."""
    shift = lane_shift(tl.max(s, 1), rate)
    return shift, tl.sum(tl.exp2(tl.fma(s, rate, -shift[:, None])), 1)
