# mypy: ignore-errors
"""Exact top-k, top-p and min-p of a row (order of draftproof.controls) without sorting it: a cutoff and a first id.

The first pass left the largest score of every group of GROUP tokens, that of every BLOCK groups where few tokens stay,
and the groups' masses where many may. They give a floor that the cutoff cannot be below: for top-k the k-th largest of
the blocks' scores, for top-p the highest score above which the groups surely hold enough mass. Only groups that reach
the floor are read again, mostly a few dozen, and their tokens that reach it are listed. Those are few enough to be
sorted, or they are searched. Equal scores are kept or cut as the law does: all by top-k, the later ids by top-p.
"""

import triton
import triton.language as tl

from draftproof.kernels.chain.search import cut_many, key, share_ties, unkey, upper
from draftproof.kernels.lib.rows import LATE, is_read, lane_shift, next_may_begin, score, shift_of, slope, wait


@triton.jit(do_not_specialize=["N", "S"])
def cut(
    rows, law, stats, lists, limits, N, S,
    GROUP: tl.constexpr, BLOCK: tl.constexpr, SP: tl.constexpr, BP: tl.constexpr,
    FEW: tl.constexpr, SWEEP: tl.constexpr, SHIFT: tl.constexpr, GREEDY: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The law of a row that was measured in spans."""
    next_may_begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    b = row // N
    n = (row % N).to(tl.int32)
    used = is_read(rows, b, n, False)
    asked = asks(rows, limits, b)
    rate, _ = slope(rows, b)
    wait(EARLY)
    tl.store(lists.count + row, -1)
    if used:
        c = tl.arange(0, SP)
        peaks = tl.load(stats.peak + row * S + c, mask=c < S, other=float("-inf"))
        peak = tl.max(peaks, 0)
        norm = tl.full((), 1.0, tl.float64)
        if stats.norm is None:
            peak = tl.where(tl.max((peaks != peaks).to(tl.int32), 0) > 0, float("nan"), peak)
        else:
            norms = tl.load(stats.norm + row * S + c, mask=c < S, other=0.0)
            norm = tl.sum((norms * tl.exp2(shift_of(peaks, rate) - shift_of(peak, rate))).to(tl.float64), 0)
        first = tl.zeros((), tl.int32)
        if GREEDY:
            firsts = tl.load(stats.first + row * S + c, mask=c < S, other=LATE)
            first = tl.min(tl.where(peaks == peak, firsts, LATE), 0)
        cut_row(rows, law, stats, lists, row, b, n, asked, peak, norm, first, GROUP, BLOCK, BP, FEW, SWEEP, SHIFT)


@triton.jit
def asks(rows, limits, b):
    """Top-k, top-p and min-p of a sequence; 0 is no top-k, 1 no top-p and 0 no min-p."""
    return tl.minimum(tl.load(limits[0] + b), rows.size), tl.load(limits[1] + b), tl.load(limits[2] + b)


@triton.jit
def cut_row(
    rows, law, stats, lists, row, b, n, asked, peak, norm, first,
    GROUP: tl.constexpr, BLOCK: tl.constexpr, BP: tl.constexpr,
    FEW: tl.constexpr, SWEEP: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Shift, scale, cutoff and first id of row n, by its largest score, that one's first id, and the normaliser."""
    k, share, least = asked
    rate, greedy = slope(rows, b)
    shift = shift_of(peak, rate)
    cutoff = tl.full((), float("-inf"), tl.float32)
    first = tl.where(greedy, first, 0)
    if stats.norm is None:  # every row has its top-k, which makes a normaliser of its own
        norm = tl.where(tl.abs(peak) < float("inf"), 1.0, float("nan")).to(tl.float64)
    sound = (norm > 0) & (norm < float("inf"))
    if sound & (greedy == 0) & ((k > 0) | (share < 1) | (least > 0)):
        cutoff, first, norm = truncate(
            rows, stats, lists, row, b, n, peak, shift, norm, rate, k, share, least,
            GROUP, BLOCK, BP, FEW, SWEEP, SHIFT,
        )  # fmt: skip
    at = b * law.stride + n
    tl.store(law.shift + at, shift)
    tl.store(law.scale + at, tl.where(norm > 0, 1.0 / norm, norm - 1.0).to(tl.float32))
    tl.store(law.cutoff + at, cutoff)
    tl.store(law.first + at, first)


@triton.jit
def truncate(
    rows, stats, lists, row, b, n, peak, shift, norm, rate, k, share, least,
    GROUP: tl.constexpr, BLOCK: tl.constexpr, BP: tl.constexpr,
    FEW: tl.constexpr, SWEEP: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Cutoff, first id and normaliser of one row under top-k, then top-p, then min-p."""
    i = tl.arange(0, BP)
    number = lists.limit // BLOCK
    best = tl.load(stats.block + row * number + i, mask=i < number, other=float("-inf")).to(tl.float32)
    top = key(peak, SHIFT)
    lowest = key(tl.full((), float("-inf"), tl.float32), SHIFT)
    if k > 0:
        floor = lowest
        if k <= number:
            keys = key(best, SHIFT)
            floor = kth(keys, k, tl.min(tl.where(i < number, keys, top), 0), top)
    else:  # the whole row's mass is known, and tokens that are too light to stay need not be read
        whole = tl.exp2(tl.fma(peak, rate, -shift))  # the largest weight
        bound = tl.maximum(tl.where(share < 1, (1.0 - share) * norm / whole / rows.size, 0.0), least).to(tl.float32)
        drop = tl.where(bound > 0, tl.log2(tl.maximum(bound, 1e-37)) - 0.01, float("-inf"))
        floor = key(peak + drop / rate, SHIFT)
        if stats.share is not None:  # noqa: SIM102  (known when the kernel is compiled; the next when it runs)
            if share < 1:
                shares = tl.load(stats.share + row * number + i, mask=i < number, other=0.0)
                shares *= tl.exp2(lane_shift(best, rate) - shift)
                weights = tl.exp2(tl.fma(best, rate, -shift))
                floor = surely(best, weights, shares, share * norm, shift, rate, floor, top, GROUP, SHIFT)
    listed, count = gather(rows, stats, lists, best, row, b, n, number, unkey(floor, SHIFT), GROUP, BLOCK, SWEEP)
    if listed & (count <= FEW):
        cutoff, first, norm = cut_few(lists, row, count, peak, shift, norm, rate, k, share, least, FEW)
    else:
        cutoff, first, norm = cut_many(
            rows, lists, row, b, n, floor, listed, count, peak, shift, norm, rate, k, share, least, SHIFT, FEW, GROUP
        )
    return cutoff, first, norm


@triton.jit
def kth(keys, k, floor, top):
    """A key that at least k keys reach, and few more do; `floor` is one that k reach."""
    high = top
    while floor < high:
        mid = upper(floor, high)
        reach = tl.sum((keys >= mid).to(tl.int32), 0)
        floor = tl.where(reach >= k, mid, floor)
        high = tl.where(reach >= k, tl.where(reach <= k + 8, floor, high), mid - 1)
    return floor


@triton.jit
def surely(best, weights, shares, need, shift, rate, lowest, top, GROUP: tl.constexpr, SHIFT: tl.constexpr):
    """The highest key above which the groups surely hold the mass `need`, but at least `lowest`.

    Of a group that reaches the key at least its largest token counts, and all but GROUP - 1 tokens below the key.
    """
    keys = key(best, SHIFT)
    floor = lowest
    high = top
    while floor < high:
        mid = upper(floor, high)
        below = (GROUP - 1) * tl.exp2(tl.fma(unkey(mid, SHIFT), rate, -shift))
        held = tl.sum(tl.where(keys >= mid, tl.maximum(weights, shares - below), 0.0), 0)
        enough = held * 0.99999 >= need
        floor = tl.where(enough, mid, floor)
        high = tl.where(enough, high, mid - 1)
    return floor


@triton.jit
def gather(
    rows, stats, lists, best, row, b, n, number, floor,
    GROUP: tl.constexpr, BLOCK: tl.constexpr, SWEEP: tl.constexpr,
):  # fmt: skip
    """List what reaches the floor: blocks, the groups in them, the tokens in these; if there was room, and how many."""
    groups, ids = lists.groups + row * lists.limit, lists.ids + row * lists.room
    blocks = groups if BLOCK == 1 else ids  # a place for a while
    i = tl.arange(0, best.shape[0])
    live = (best >= floor) & (i < number)
    order = tl.cumsum(live.to(tl.int32), 0)
    tl.store(blocks + order - 1, i * (GROUP if BLOCK == 1 else BLOCK), mask=live)
    count = tl.sum(live.to(tl.int32), 0)
    tl.debug_barrier()
    if BLOCK > 1:
        best = stats.group + row * lists.limit
        count = within(rows, blocks, count, best, b, n, floor, groups, None, lists.limit, lists.limit, BLOCK, GROUP, 64)
        tl.debug_barrier()
    scores = lists.scores + row * lists.room
    found = within(
        rows, groups, count, None, b, n, floor, ids, scores, lists.room, rows.size, GROUP, 1, SWEEP // GROUP
    )  # fmt: skip
    tl.debug_barrier()
    listed = found <= lists.room
    tl.store(lists.count + row, tl.where(listed, found, -1))
    return listed, tl.where(listed, found, count * GROUP)


@triton.jit
def within(
    rows, starts, count, best, b, n, floor, out, scores, room, end,
    WIDTH: tl.constexpr, UNIT: tl.constexpr, SWEEP: tl.constexpr,
):  # fmt: skip
    """List the parts that reach the floor of `count` wholes of WIDTH parts each, by where these start: how many.

    The parts are tokens, or groups of UNIT tokens with their best scores; a part is listed by its first token. Threads
    lie along a whole and hold the same place of several, as suits the stores: other layouts are turned around for them.
    """
    found = count * 0
    for o in range(0, count, SWEEP):
        i = o + tl.arange(0, SWEEP)
        start = tl.load(starts + i, mask=i < count, other=end)
        part = start[None, :] + tl.arange(0, WIDTH)[:, None]
        if best is None:
            s = score(rows, b, n, part, part < end)
        else:
            s = tl.load(best + part, mask=part < end, other=float("-inf")).to(tl.float32)
        reach = ((s >= floor) & (s > float("-inf"))).to(tl.int32)
        each = tl.sum(reach, 0)
        at = (found + tl.cumsum(each, 0) - each)[None, :] + tl.cumsum(reach, 0) - 1
        there = (reach > 0) & (at < room)
        tl.store(out + at, part * UNIT, mask=there)
        if scores is not None:
            tl.store(scores + at, s, mask=there)
        found += tl.sum(each, 0)
    return found


@triton.jit
def cut_few(lists, row, count, peak, shift, norm, rate, k, share, least, FEW: tl.constexpr):
    """Cutoff, first id and normaliser of a row with few candidates, by sorting; those that stay are listed anew."""
    i = tl.arange(0, FEW)
    ids = tl.load(lists.ids + row * lists.room + i, mask=i < count, other=LATE)
    scores = tl.load(lists.scores + row * lists.room + i, mask=i < count, other=float("-inf"))
    s = tl.sort(scores, descending=True)
    cutoff = tl.where(k > 0, tl.max(tl.where(i >= k - 1, s, float("-inf")), 0), float("-inf"))
    weights = tl.where(s >= cutoff, tl.exp2(tl.fma(s, rate, -shift)), 0.0).to(tl.float64)
    norm = tl.where(k > 0, tl.sum(weights, 0), norm)
    spare = k * 0
    if share < 1:  # a score stays while the scores above it hold less than the share
        stays = (tl.cumsum(weights, 0) - weights < share * norm) & (weights > 0)
        cutoff = tl.min(tl.where(stays, s, peak), 0)
        over = tl.sum(tl.where(s > cutoff, weights, 0.0), 0)
        spare, norm = share_ties(cutoff, over, tl.sum((s == cutoff).to(tl.int32), 0), shift, norm, rate, share)
    if least > 0:
        heavy = tl.exp2((s - peak) * rate) >= least
        level = tl.min(tl.where(heavy, s, peak), 0)
        if (level > cutoff) | ((share == 1) & (k == 0)):
            cutoff = level
            spare = spare * 0
            norm = tl.sum(tl.where(heavy, weights, 0.0), 0)
    equal = (scores == cutoff) & (i < count)
    last = equal & (tl.cumsum(equal.to(tl.int32), 0) > spare)
    first = tl.where(spare > 0, tl.min(tl.where(last, ids, LATE), 0), 0)
    stays = ((scores > cutoff) | last).to(tl.int32)
    at = row * lists.room + tl.cumsum(stays, 0) - 1
    tl.store(lists.ids + at, ids, mask=stays > 0)
    tl.store(lists.scores + at, scores, mask=stays > 0)
    tl.store(lists.count + row, tl.sum(stays, 0))
    return cutoff, first, norm
