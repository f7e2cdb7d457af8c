# mypy: ignore-errors
"""Exact top-k, top-p and min-p without sorting (order of draftproof.controls): a cutoff score and a first id per row.

The first pass left the largest score of every group of GROUP tokens, and the group's mass if many tokens may stay. They
give a floor that the cutoff cannot be below: for top-k the k-th largest of the groups' scores, for top-p the highest
score above which the groups surely hold enough mass. Only groups that reach the floor are read again, mostly a few
dozen, and their tokens that reach it are listed. The cutoff is then found among them by a search on the scores' bits,
which are as ordered as the scores. Equal scores are kept or cut as the law does: all by top-k, the later ids by top-p.
"""

import triton
import triton.language as tl

from draftproof.kernels.device import LATE, is_read, lane_shift, next_may_begin, score, shift_of, slope, wait

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
def kth(keys, k, floor, top, SPARE: tl.constexpr):
    """A key that at least k keys reach, and that at most SPARE more do where there is such; `floor` is one."""
    high = top
    while floor < high:
        mid = upper(floor, high)
        reach = tl.sum((keys >= mid).to(tl.int32), 0)
        floor = tl.where(reach >= k, mid, floor)
        high = tl.where(reach >= k, tl.where(reach <= k + SPARE, floor, high), mid - 1)
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
    tl.store(lists.ids + row * lists.room + tl.cumsum(stays, 0) - 1, ids, mask=stays > 0)
    tl.store(lists.count + row, tl.sum(stays, 0))
    return cutoff, first, norm


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
            floor = kth(keys, k, tl.min(tl.where(i < number, keys, top), 0), top, 8)
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
