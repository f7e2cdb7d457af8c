# mypy: ignore-errors
"""First kernel: every target row is read once, for the largest score and the normaliser of each of its spans.

With a few hundred rows a truncated row is one span, and the program that has read it cuts it too. Of a drafter's row
the large tokens may be kept, and of a target's row the scores of the drafter's large tokens.
"""

import triton
import triton.language as tl

from draftproof.kernels.chain.truncate import asks, cut_row
from draftproof.kernels.lib.rows import LATE, edit, is_read, lane_shift, next_may_begin, raw, score, shift_of, slope


@triton.jit(do_not_specialize=["N", "M", "S"])
def measure(
    rows, law, draft_law, rule, stats, lists, limits, work, N, M, S,
    SPAN: tl.constexpr, TILE: tl.constexpr, LANE: tl.constexpr, BLOCK: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    BP: tl.constexpr, FEW: tl.constexpr, SWEEP: tl.constexpr, SHIFT: tl.constexpr,
    GREEDY: tl.constexpr, LAZY: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Span c of row n of M, tile by tile: each lane of LANE tokens keeps its own peak and sum; they meet at the end.

    So the threads need not wait for one another while they read. With `limits` the span is a row, and is cut at once.
    """
    next_may_begin(EARLY)
    program = tl.program_id(0)
    b = (program // (M * S)).to(tl.int64)
    n = program // S % M
    used = is_read(rows, b, n, LAZY)
    if work is not None:  # noqa: SIM102  (known when the kernel is compiled; the next when it runs)
        if program == 0:
            tl.store(work, 0)  # no more places are taken
    if limits is not None:
        tl.store(lists.count + program, -1)
    if used:
        c = program % S
        rate, _ = slope(rows, b)
        marks = tl.zeros((C,), tl.int32)
        if stats.height is not None:  # of block verification alone, and of rows that a draft was drawn beside
            i = tl.arange(0, C)
            wanted = i < tl.where((tl.load(rule + b) == 1) & (n < N - 1), C, 0)
            marks = tl.load(draft_law.crest + (b * draft_law.stride + n) * C + i, mask=wanted, other=-1)
        first = c * (SPAN // TILE)
        end = tl.minimum(first + SPAN // TILE, tl.cdiv(rows.size, TILE))
        peaks, norms, firsts, where = read(
            rows, stats, b, n, N, first, end, lists.limit, rate, SPAN > TILE, TILE, LANE, BLOCK, GREEDY
        )
        peak = tl.max(peaks, 0)
        norm = tl.full((), 1.0, tl.float32)
        if stats.norm is None:
            peak = tl.where(tl.max((peaks != peaks).to(tl.int32), 0) > 0, float("nan"), peak)
        else:
            norm = tl.sum(norms * tl.exp2(lane_shift(peaks, rate) - shift_of(peak, rate)), 0)
        first = tl.zeros((), tl.int32)
        if GREEDY:
            first = tl.min(tl.where(peaks == peak, firsts, LATE), 0)
        at = (b * N + n) * S + c
        if limits is not None:
            tl.debug_barrier()
            cut_row(
                rows, law, stats, lists, at, b, n, asks(rows, limits, b), peak, norm.to(tl.float64), first,
                LANE, BLOCK, BP, FEW, SWEEP, SHIFT,
            )  # fmt: skip
        else:
            tl.store(stats.peak + at, peak)
            if stats.norm is not None:
                tl.store(stats.norm + at, norm)
            if GREEDY:
                tl.store(stats.first + at, first)
        if law.crest is not None:
            note_largest(rows, law, b, n, c, S, peaks, where, W, C, TILE, LANE)
        if stats.height is not None:  # now that they have just been read
            inside = (marks >= c * SPAN) & (marks < tl.minimum((c + 1) * SPAN, rows.size))
            s = score(rows, b, n, marks, inside)
            tl.store(stats.height + (b * N + n) * C + tl.arange(0, C), s, mask=inside)


@triton.jit
def note_largest(
    rows, law, b, n, c, S, peaks, where, W: tl.constexpr, C: tl.constexpr, TILE: tl.constexpr, LANE: tl.constexpr
):  # fmt: skip
    """The largest token of each of W parts of span c, which are in the lanes that have the largest peaks."""
    high = tl.reshape(peaks, (W, TILE // LANE // W))
    where = tl.reshape(where * (TILE // LANE) + tl.arange(0, TILE // LANE), (W, TILE // LANE // W))
    where = tl.max(tl.where(high == tl.max(high, 1)[:, None], where, 0), 1)
    ids = where[:, None] * LANE + tl.arange(0, LANE)[None, :]
    s = score(rows, b, n, ids, ids < rows.size)
    best = tl.max(s, 1)
    ids = tl.max(tl.where(s == best[:, None], ids, -1), 1)
    at = (b * law.stride + n) * C
    i = c * W + tl.arange(0, W)
    tl.store(law.crest + at + i, tl.where(ids < rows.size, ids, -1), mask=i < C)
    tl.store(law.height + at + i, best, mask=i < C)
    every = tl.arange(0, C)
    tl.store(law.crest + at + every, -1, mask=every >= tl.where(c == S - 1, S * W, C))


@triton.jit
def read(
    rows, stats, b, n, N, first, end, G, rate,
    MANY: tl.constexpr, TILE: tl.constexpr, LANE: tl.constexpr, BLOCK: tl.constexpr, GREEDY: tl.constexpr,
):  # fmt: skip
    """Of tiles `first` to `end` of a row, by lanes: peaks, sums, first ids of the peaks, and tiles that hold these."""
    peaks = tl.full((TILE // LANE,), float("-inf"), tl.float32)
    norms = tl.zeros((TILE // LANE,), tl.float32)
    firsts = tl.zeros((TILE // LANE,), tl.int32)
    where = tl.zeros((TILE // LANE,), tl.int32) + tl.cdiv(rows.size, TILE)  # outside the row
    full = tl.minimum(end, rows.size // TILE)  # the last tile may be shorter
    ids = tl.arange(0, TILE // LANE)[:, None] * LANE + tl.arange(0, LANE)[None, :]
    short = (end - 1) * TILE + ids < tl.where(full < end, rows.size, 0)
    rest = raw(rows, b, n, (end - 1) * TILE + ids, short)  # underway while the full tiles are gone through
    for t in tl.range(first, full, num_stages=4 if MANY else 1):
        s = score(rows, b, n, t * TILE + ids, None)
        peaks, norms, firsts, where = tally(
            s, stats, b, n, N, t, G, rate, peaks, norms, firsts, where, TILE, LANE, BLOCK, GREEDY
        )
    if full < end:
        s = edit(rows, rest, b, n, (end - 1) * TILE + ids, short)
        peaks, norms, firsts, where = tally(
            s, stats, b, n, N, end - 1, G, rate, peaks, norms, firsts, where, TILE, LANE, BLOCK, GREEDY
        )
    return peaks, norms, firsts, where


@triton.jit
def tally(
    s, stats, b, n, N, t, G, rate, peaks, norms, firsts, where,
    TILE: tl.constexpr, LANE: tl.constexpr, BLOCK: tl.constexpr, GREEDY: tl.constexpr,
):  # fmt: skip
    """The lanes' peaks, sums, first ids of their peaks and tiles that hold these, with the scores of tile t added."""
    lane = tl.arange(0, TILE // LANE)
    ids = t * TILE + lane[:, None] * LANE + tl.arange(0, LANE)[None, :]
    if stats.norm is None:
        top = largest(s)
        higher = tl.maximum(peaks, top, propagate_nan=tl.PropagateNan.ALL)
    else:
        top = tl.max(s, 1)
        higher = tl.maximum(peaks, top)
        shift = lane_shift(higher, rate)
        norm = tl.sum(tl.exp2(tl.fma(s, rate, -shift[:, None])), 1)
        norms = norms * tl.exp2(lane_shift(peaks, rate) - shift) + norm
    if GREEDY:
        firsts = tl.where(top > peaks, tl.min(tl.where(s == top[:, None], ids, LATE), 1), firsts)
    if stats.group is not None:  # a lane's part of a tile is a group
        at = (b * N + n) * G + t * (TILE // LANE)
        tl.store(stats.group + at + lane, top)
        if BLOCK > 1:
            high = tl.max(tl.reshape(top, (TILE // LANE // BLOCK, BLOCK)), 1)
            tl.store(stats.block + at // BLOCK + tl.arange(0, TILE // LANE // BLOCK), high)
        if stats.share is not None:
            tl.store(stats.share + at + lane, norm * tl.exp2(shift - lane_shift(top, rate)))
    where = tl.where(top > peaks, t, where)
    return higher, norms, firsts, where


@triton.jit
def largest(s):
    """The largest of each row of scores, NaN where one is, which tl.max passes over."""
    for _ in tl.static_range(3):  # a thread holds eight neighbours
        x, y = tl.split(tl.reshape(s, (s.shape[0], s.shape[1] // 2, 2)))
        s = tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    return tl.where(tl.max((s != s).to(tl.int32), 1) > 0, float("nan"), tl.max(s, 1))
