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
def kth(groups, k, lowest, top, limit, GP: tl.constexpr):
    """A key that at least k groups reach and few more do; `lowest` if there are fewer groups, and never below it."""
    there = tl.arange(0, GP) < limit
    floor = tl.maximum(tl.min(tl.where(there, groups, top), 0), lowest)
    floor = tl.where(k <= limit, floor, lowest)
    high = tl.where(k <= limit, top, lowest)
    while floor < high:
        mid = upper(floor, high)
        number = tl.sum((there & (groups >= mid)).to(tl.int32), 0)
        floor = tl.where(number >= k, mid, floor)
        high = tl.where(number >= k, tl.where(number <= k + 8, floor, high), mid - 1)
    return floor


@triton.jit
def surely(groups, weights, shares, need, shift, rate, lowest, top, GROUP: tl.constexpr, SHIFT: tl.constexpr):
    """The highest key above which the groups surely hold the mass `need`, but at least `lowest`.

    Of a group that reaches the key at least its largest token counts, and all but GROUP - 1 tokens below the key.
    """
    floor = lowest
    high = top
    while floor < high:
        mid = upper(floor, high)
        below = (GROUP - 1) * tl.exp2(tl.fma(unkey(mid, SHIFT), rate, -shift))
        held = tl.sum(tl.where(groups >= mid, tl.maximum(weights, shares - below), 0.0), 0)
        enough = held * 0.99999 >= need
        floor = tl.where(enough, mid, floor)
        high = tl.where(enough, high, mid - 1)
    return floor


@triton.jit
def candidates(
    rows, lists, row, b, n, shift, rate, listed, count, tile,
    SHIFT: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Ids, keys and weights of one tile of candidates: by the list of tokens if there is one, else by live groups."""
    i = tile * TILE + tl.arange(0, TILE)
    there = i < count
    if listed:
        ids = tl.load(lists.ids + row * lists.room + i, mask=there, other=0)
        s = tl.load(lists.scores + row * lists.room + i, mask=there, other=float("-inf"))
    else:
        ids = tl.load(lists.groups + row * lists.limit + i // GROUP, mask=there, other=0) * GROUP + i % GROUP
        s = score(rows, b, n, ids, there & (ids < rows.size))
    return ids, key(s, SHIFT), tl.exp2(tl.fma(s, rate, -shift))


@triton.jit
def gather(
    rows, lists, groups, row, b, n, floor,
    SHIFT: tl.constexpr, SWEEP: tl.constexpr, GROUP: tl.constexpr, GP: tl.constexpr,
):  # fmt: skip
    """List the groups that reach the floor, then the tokens in them that do; whether there was room, and how many."""
    g = tl.arange(0, GP)
    live = (g < lists.limit) & (groups >= floor)
    order = tl.cumsum(live.to(tl.int32), 0)
    tl.store(lists.groups + row * lists.limit + order - 1, g, mask=live)
    count = tl.max(order, 0) * GROUP
    tl.debug_barrier()
    found = count * 0
    for tile in range(tl.cdiv(count, SWEEP)):
        i = tile * SWEEP + tl.arange(0, SWEEP)
        ids = tl.load(lists.groups + row * lists.limit + i // GROUP, mask=i < count, other=0) * GROUP + i % GROUP
        s = score(rows, b, n, ids, (i < count) & (ids < rows.size))
        reach = (key(s, SHIFT) >= floor) & (s > float("-inf"))
        place = tl.cumsum(reach.to(tl.int32), 0)
        at = lists.room * row + found + place - 1
        room = reach & (found + place <= lists.room)
        tl.store(lists.ids + at, ids, mask=room)
        tl.store(lists.scores + at, s, mask=room)
        found += tl.max(place, 0)
    tl.debug_barrier()
    listed = found <= lists.room
    tl.store(lists.count + row, tl.where(listed, found, -1))
    return listed, tl.where(listed, found, count)


@triton.jit
def above(
    rows, lists, row, b, n, shift, rate, listed, count, ids, keys, weights, levels,
    SHIFT: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Candidates above each of a few levels: their number and mass. The first tile is at hand, mostly the only one."""
    higher = keys[:, None] > levels[None, :]
    number = tl.sum(higher.to(tl.int32), 0)
    mass = tl.sum(tl.where(higher, weights[:, None], 0.0).to(tl.float64), 0)
    for tile in range(1, tl.cdiv(count, TILE)):
        _, k, w = candidates(rows, lists, row, b, n, shift, rate, listed, count, tile, SHIFT, TILE, GROUP)
        higher = k[:, None] > levels[None, :]
        number += tl.sum(higher.to(tl.int32), 0)
        mass += tl.sum(tl.where(higher, w[:, None], 0.0).to(tl.float64), 0)
    return number, mass


@triton.jit
def nth(
    rows, lists, row, b, n, shift, rate, listed, count, level, spare,
    SHIFT: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Of the candidates at `level`, whose ids ascend, the id of the one that follows the first `spare`."""
    found = spare * 0 + LATE
    seen = spare * 0
    for tile in range(tl.cdiv(count, TILE)):
        ids, k, _ = candidates(rows, lists, row, b, n, shift, rate, listed, count, tile, SHIFT, TILE, GROUP)
        order = seen + tl.cumsum((k == level).to(tl.int32), 0)
        found = tl.minimum(found, tl.min(tl.where((k == level) & (order > spare), ids, LATE), 0))
        seen = tl.max(order, 0)
    return found


@triton.jit(do_not_specialize=["N", "S"])
def cut(
    rows, law, stats, lists, limits, N, S,
    GROUP: tl.constexpr, SP: tl.constexpr, GP: tl.constexpr, FEW: tl.constexpr, SWEEP: tl.constexpr,
    SHIFT: tl.constexpr, GREEDY: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The law of a measured row."""
    next_may_begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    b = row // N
    n = (row % N).to(tl.int32)
    used = is_read(rows, b, n, False)
    k = tl.load(limits[0] + b)
    k = tl.where(k >= rows.size, 0, k)
    share = tl.load(limits[1] + b)
    least = tl.load(limits[2] + b)
    wait(EARLY)
    tl.store(lists.count + row, -1)
    if used:
        cut_row(rows, law, stats, lists, row, b, n, k, share, least, S, GROUP, SP, GP, FEW, SWEEP, SHIFT, GREEDY)


@triton.jit
def cut_row(
    rows, law, stats, lists, row, b, n, k, share, least, S,
    GROUP: tl.constexpr, SP: tl.constexpr, GP: tl.constexpr, FEW: tl.constexpr, SWEEP: tl.constexpr,
    SHIFT: tl.constexpr, GREEDY: tl.constexpr,
):  # fmt: skip
    """Shift, scale, cutoff and first id of row n."""
    c = tl.arange(0, SP)
    peaks = tl.load(stats.peak + row * S + c, mask=c < S, other=float("-inf"))
    norms = tl.load(stats.norm + row * S + c, mask=c < S, other=0.0)
    peak = tl.max(peaks, 0)
    rate, greedy = slope(rows, b)
    shift = shift_of(peak, rate)
    norm = tl.sum((norms * tl.exp2(shift_of(peaks, rate) - shift)).to(tl.float64), 0)
    cutoff = tl.full((), float("-inf"), tl.float32)
    first = tl.zeros((), tl.int32)
    if GREEDY:
        firsts = tl.load(stats.first + row * S + c, mask=c < S, other=LATE)
        first = tl.where(greedy, tl.min(tl.where(peaks == peak, firsts, LATE), 0), 0)
    sound = (norm > 0) & (norm < float("inf"))
    if sound & (greedy == 0) & ((k > 0) | (share < 1) | (least > 0)):
        cutoff, first, norm = bisect(
            rows, stats, lists, row, b, n, peak, shift, norm, rate, k, share, least, GROUP, GP, FEW, SWEEP, SHIFT
        )
    at = b * law.stride + n
    tl.store(law.shift + at, shift)
    tl.store(law.scale + at, tl.where(norm > 0, 1.0 / norm, norm - 1.0).to(tl.float32))
    tl.store(law.cutoff + at, cutoff)
    tl.store(law.first + at, first)


@triton.jit
def bisect(
    rows, stats, lists, row, b, n, peak, shift, norm, rate, k, share, least,
    GROUP: tl.constexpr, GP: tl.constexpr, TILE: tl.constexpr, SWEEP: tl.constexpr,
    SHIFT: tl.constexpr,
):  # fmt: skip
    """Cutoff, first id and normaliser of one row under top-k, then top-p, then min-p."""
    g = tl.arange(0, GP)
    there = g < lists.limit
    best = tl.load(stats.group + row * lists.limit + g, mask=there, other=float("-inf"))
    groups = key(best, SHIFT)
    top = key(peak, SHIFT)
    lowest = key(tl.full((), float("-inf"), tl.float32), SHIFT)
    if k > 0:
        floor = kth(groups, k, lowest, top, lists.limit, GP)
    else:  # the whole row's mass is known, and tokens that are too light to stay need not be read
        whole = tl.exp2(tl.fma(peak, rate, -shift))  # the largest weight
        bound = tl.maximum(tl.where(share < 1, (1.0 - share) * norm / whole / rows.size, 0.0), least).to(tl.float32)
        drop = tl.where(bound > 0, tl.log2(tl.maximum(bound, 1e-37)) - 0.01, float("-inf"))
        floor = key(peak + drop / rate, SHIFT)
        if stats.share is not None:  # noqa: SIM102  (known when the kernel is compiled; the next when it runs)
            if share < 1:
                shares = tl.load(stats.share + row * lists.limit + g, mask=there, other=0.0)
                shares *= tl.exp2(lane_shift(best, rate) - shift)
                weights = tl.exp2(tl.fma(best, rate, -shift))
                floor = surely(groups, weights, shares, share * norm, shift, rate, floor, top, GROUP, SHIFT)
    listed, count = gather(rows, lists, groups, row, b, n, floor, SHIFT, SWEEP, GROUP, GP)
    ids, keys, weights = candidates(rows, lists, row, b, n, shift, rate, listed, count, 0, SHIFT, TILE, GROUP)
    cutoff, first, spare = floor, floor * 0, floor * 0
    # Three searches of one form, for the lowest value that fits: the k-th largest score; the score with less than
    # `share` of the mass above it; the score that min-p lets stay. Every look narrows the range to an eighth.
    part = tl.arange(0, WAYS)
    for search in range(3):
        if ((search == 0) & (k > 0)) | ((search == 1) & (share < 1)) | ((search == 2) & (least > 0)):
            low = cutoff.to(tl.int64)
            high = top.to(tl.int64)
            while low < high:
                step = (high - low + WAYS - 1) // WAYS
                levels = tl.minimum(low + (part + 1) * step - 1, high)
                number, mass = above(
                    rows, lists, row, b, n, shift, rate, listed, count, ids, keys, weights, levels.to(tl.int32),
                    SHIFT, TILE, GROUP,
                )  # fmt: skip
                light = tl.exp2((unkey(levels.to(tl.int32), SHIFT) - peak) * rate) < least
                short = ((search == 0) & (number >= k)) | ((search == 1) & (mass >= share * norm))
                short = short | ((search == 2) & light)
                low = tl.minimum(low + tl.sum(short.to(tl.int32), 0) * step, high)
                high = tl.minimum(low + step - 1, high)
            level = low.to(tl.int32)
            number, mass = above(
                rows, lists, row, b, n, shift, rate, listed, count, ids, keys, weights, level - (part == 1),
                SHIFT, TILE, GROUP,
            )  # fmt: skip
            over = tl.sum(tl.where(part == 0, mass, 0.0), 0)
            tied = tl.sum(tl.where(part == 1, number, tl.where(part == 0, -number, 0)), 0)
            each = tl.exp2(tl.fma(unkey(level, SHIFT), rate, -shift)).to(tl.float64)
            if search == 1:  # of equal scores as many are cut as fit into the mass to cut
                rest = tl.floor(((1.0 - share) * norm - (norm - over - tied * each)) / tl.maximum(each, 1e-300))
                rest = tl.minimum(tl.maximum(rest, 0.0), tl.maximum(tied - 1, 0).to(tl.float64))
                spare = rest.to(tl.int32)
            changed = (search < 2) | (level > cutoff) | ((share == 1) & (k == 0))
            spare = tl.where((search == 2) & (level > cutoff), 0, spare)
            norm = tl.where(changed, over + (tied - spare) * each, norm)
            cutoff = tl.where(changed, level, cutoff)
    if spare > 0:
        first = nth(rows, lists, row, b, n, shift, rate, listed, count, cutoff, spare, SHIFT, TILE, GROUP)
    return unkey(cutoff, SHIFT), first, norm
