# mypy: ignore-errors
"""First kernel: read every target row once, for the largest score and the normaliser of each of its spans.

With a few hundred rows a truncated row is a single span, and the program that has read it truncates it too. Of a draft
row the kernel may also keep a crest, a few of its largest tokens; of a target row the scores of the drafter's crest.
"""

import triton
import triton.language as tl

from draftproof.kernels.chain.truncate import load_limits, truncate_row
from draftproof.kernels.lib.codes import BLOCK_RULE, NO_TOKEN
from draftproof.kernels.lib.laws import lane_shift, rate_of, shift_of
from draftproof.kernels.lib.pdl import launch_dependents, wait
from draftproof.kernels.lib.rows import apply_controls, is_needed, load_logits, load_scores


@triton.jit(do_not_specialize=["N", "measured", "spans"])
def measure(
    rows, laws, draft_laws, rule_ptr, stats, lists, limits, overflow_ptr, N, measured, spans,
    SPAN: tl.constexpr, TILE: tl.constexpr, LANE: tl.constexpr, BLOCK: tl.constexpr, PER_SPAN: tl.constexpr,
    CREST: tl.constexpr, BLOCK_BEST: tl.constexpr, FEW: tl.constexpr, SWEEP: tl.constexpr, SHIFT: tl.constexpr,
    GREEDY: tl.constexpr, DEFER_LAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One span of one of the first `measured` rows of N, tile by tile. With `limits` the span is a row, truncated here.

    Every lane of LANE tokens keeps its own peak and sum, and they are combined at the end: the threads do not wait for
    one another while they read.
    """
    wait(PDL)  # before the next kernel may start: what it reads at once may come from the kernel before this one
    launch_dependents(PDL)
    program = tl.program_id(0)
    b = (program // (measured * spans)).to(tl.int64)
    n = program // spans % measured
    needed = is_needed(rows, b, n, DEFER_LAST)
    if overflow_ptr is not None:  # noqa: SIM102  (known when the kernel is compiled; the next when it runs)
        if program == 0:
            tl.store(overflow_ptr, 0)  # the worklist is empty
    if limits is not None:
        tl.store(lists.count_ptr + program, -1)
    if needed:
        c = program % spans
        rate, _ = rate_of(rows, b)
        crest = tl.zeros((CREST,), tl.int32)
        if stats.height_ptr is not None:  # for block verification alone, and rows that a draft token was drawn after
            i = tl.arange(0, CREST)
            wanted = i < tl.where((tl.load(rule_ptr + b) == BLOCK_RULE) & (n < N - 1), CREST, 0)
            crest = tl.load(draft_laws.crest_ptr + (b * draft_laws.stride + n) * CREST + i, mask=wanted, other=-1)
        first = c * (SPAN // TILE)
        end = tl.minimum(first + SPAN // TILE, tl.cdiv(rows.vocabulary, TILE))
        peaks, norms, firsts, tiles = read_tiles(
            rows, stats, b, n, N, first, end, lists.limit, rate, SPAN > TILE, TILE, LANE, BLOCK, GREEDY
        )
        peak = tl.max(peaks, 0)
        norm = tl.full((), 1.0, tl.float32)
        if stats.norm_ptr is None:
            peak = tl.where(tl.max((peaks != peaks).to(tl.int32), 0) > 0, float("nan"), peak)
        else:
            norm = tl.sum(norms * tl.exp2(lane_shift(peaks, rate) - shift_of(peak, rate)), 0)
        first = tl.zeros((), tl.int32)
        if GREEDY:
            first = tl.min(tl.where(peaks == peak, firsts, NO_TOKEN), 0)
        span = (b * N + n) * spans + c
        if limits is not None:
            tl.debug_barrier()
            truncate_row(
                rows, laws, stats, lists, span, b, n, load_limits(rows, limits, b), peak, norm.to(tl.float64), first,
                LANE, BLOCK, BLOCK_BEST, FEW, SWEEP, SHIFT,
            )  # fmt: skip
        else:
            tl.store(stats.peak_ptr + span, peak)
            if stats.norm_ptr is not None:
                tl.store(stats.norm_ptr + span, norm)
            if GREEDY:
                tl.store(stats.first_ptr + span, first)
        if laws.crest_ptr is not None:
            store_crest(rows, laws, b, n, c, spans, peaks, tiles, PER_SPAN, CREST, TILE, LANE)
        if stats.height_ptr is not None:  # now that these tokens have just been read
            inside = (crest >= c * SPAN) & (crest < tl.minimum((c + 1) * SPAN, rows.vocabulary))
            s = load_scores(rows, b, n, crest, inside)
            tl.store(stats.height_ptr + (b * N + n) * CREST + tl.arange(0, CREST), s, mask=inside)


@triton.jit
def store_crest(
    rows, laws, b, n, c, spans, peaks, tiles,
    PER_SPAN: tl.constexpr, CREST: tl.constexpr, TILE: tl.constexpr, LANE: tl.constexpr,
):  # fmt: skip
    """The largest token of each of PER_SPAN parts of span c; it is in the lane with the largest peak of its part."""
    high = tl.reshape(peaks, (PER_SPAN, TILE // LANE // PER_SPAN))
    lanes = tl.reshape(tiles * (TILE // LANE) + tl.arange(0, TILE // LANE), (PER_SPAN, TILE // LANE // PER_SPAN))
    lanes = tl.max(tl.where(high == tl.max(high, 1)[:, None], lanes, 0), 1)
    ids = lanes[:, None] * LANE + tl.arange(0, LANE)[None, :]
    s = load_scores(rows, b, n, ids, ids < rows.vocabulary)
    best = tl.max(s, 1)
    ids = tl.max(tl.where(s == best[:, None], ids, -1), 1)
    row = (b * laws.stride + n) * CREST
    i = c * PER_SPAN + tl.arange(0, PER_SPAN)
    tl.store(laws.crest_ptr + row + i, tl.where(ids < rows.vocabulary, ids, -1), mask=i < CREST)
    tl.store(laws.height_ptr + row + i, best, mask=i < CREST)
    every = tl.arange(0, CREST)
    tl.store(laws.crest_ptr + row + every, -1, mask=every >= tl.where(c == spans - 1, spans * PER_SPAN, CREST))


@triton.jit
def read_tiles(
    rows, stats, b, n, N, first, end, groups, rate,
    SEVERAL: tl.constexpr, TILE: tl.constexpr, LANE: tl.constexpr, BLOCK: tl.constexpr, GREEDY: tl.constexpr,
):  # fmt: skip
    """Of tiles `first` to `end` of a row, by lane: peaks, sums, first ids of the peaks, and the tiles of the peaks."""
    peaks = tl.full((TILE // LANE,), float("-inf"), tl.float32)
    norms = tl.zeros((TILE // LANE,), tl.float32)
    firsts = tl.zeros((TILE // LANE,), tl.int32)
    tiles = tl.zeros((TILE // LANE,), tl.int32) + tl.cdiv(rows.vocabulary, TILE)  # outside the row
    full = tl.minimum(end, rows.vocabulary // TILE)  # the last tile may be shorter
    ids = tl.arange(0, TILE // LANE)[:, None] * LANE + tl.arange(0, LANE)[None, :]
    short = (end - 1) * TILE + ids < tl.where(full < end, rows.vocabulary, 0)
    last = load_logits(rows, b, n, (end - 1) * TILE + ids, short)  # in flight while the full tiles are processed
    for t in tl.range(first, full, num_stages=4 if SEVERAL else 1):
        s = load_scores(rows, b, n, t * TILE + ids)
        peaks, norms, firsts, tiles = add_tile(
            s, stats, b, n, N, t, groups, rate, peaks, norms, firsts, tiles, TILE, LANE, BLOCK, GREEDY
        )
    if full < end:
        s = apply_controls(rows, last, b, n, (end - 1) * TILE + ids, short)
        peaks, norms, firsts, tiles = add_tile(
            s, stats, b, n, N, end - 1, groups, rate, peaks, norms, firsts, tiles, TILE, LANE, BLOCK, GREEDY
        )
    return peaks, norms, firsts, tiles


@triton.jit
def add_tile(
    s, stats, b, n, N, t, groups, rate, peaks, norms, firsts, tiles,
    TILE: tl.constexpr, LANE: tl.constexpr, BLOCK: tl.constexpr, GREEDY: tl.constexpr,
):  # fmt: skip
    """The lanes' peaks, sums, first ids and tiles of the peaks, with the scores of tile t added."""
    lane = tl.arange(0, TILE // LANE)
    ids = t * TILE + lane[:, None] * LANE + tl.arange(0, LANE)[None, :]
    if stats.norm_ptr is None:
        top = largest(s)
        higher = tl.maximum(peaks, top, propagate_nan=tl.PropagateNan.ALL)
    else:
        top = tl.max(s, 1)
        higher = tl.maximum(peaks, top)
        shift = lane_shift(higher, rate)
        norm = tl.sum(tl.exp2(tl.fma(s, rate, -shift[:, None])), 1)
        norms = norms * tl.exp2(lane_shift(peaks, rate) - shift) + norm
    if GREEDY:
        firsts = tl.where(top > peaks, tl.min(tl.where(s == top[:, None], ids, NO_TOKEN), 1), firsts)
    if stats.group_ptr is not None:  # a lane's part of a tile is a group
        start = (b * N + n) * groups + t * (TILE // LANE)
        tl.store(stats.group_ptr + start + lane, top)
        if BLOCK > 1:
            high = tl.max(tl.reshape(top, (TILE // LANE // BLOCK, BLOCK)), 1)
            tl.store(stats.block_ptr + start // BLOCK + tl.arange(0, TILE // LANE // BLOCK), high)
        if stats.share_ptr is not None:
            tl.store(stats.share_ptr + start + lane, norm * tl.exp2(shift - lane_shift(top, rate)))
    tiles = tl.where(top > peaks, t, tiles)
    return higher, norms, firsts, tiles


@triton.jit
def largest(s):
    """The largest score of each row of s, NaN where one is: tl.max ignores NaN."""
    for _ in tl.static_range(3):  # a thread holds eight neighbours
        x, y = tl.split(tl.reshape(s, (s.shape[0], s.shape[1] // 2, 2)))
        s = tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    return tl.where(tl.max((s != s).to(tl.int32), 1) > 0, float("nan"), tl.max(s, 1))
