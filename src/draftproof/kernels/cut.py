# mypy: ignore-errors
"""Exact top-k, top-p and min-p without sorting (order of draftproof.controls): a cutoff score and a first id per row.

The first pass left the largest score of every group of GROUP tokens, and the group's mass if many tokens may stay. They
give a floor that the cutoff cannot be below: for top-k the k-th largest of the groups' scores, for top-p the highest
score above which the groups surely hold enough mass. Only groups that reach the floor are read again, mostly a few
dozen, and their tokens that reach it are listed. The cutoff is then found among them by bisection on the scores' bits,
which are as ordered as the scores. Equal scores are kept or cut as the law does: all by top-k, the later ids by top-p.
"""

import triton
import triton.language as tl

from draftproof.kernels.device import lane_shift, score, shift_of, slope


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
def lower(low, high):
    """Halfway, rounded down, without overflow."""
    return (low & high) + ((low ^ high) >> 1)


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
    rows, lists, row, b, n, shift, rate, listed, count, ids, keys, weights, level, most,
    SHIFT: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Candidates above `level`: their number and mass; candidates at `level` with an id up to `most`: their number.

    The first tile is at hand and mostly the only one.
    """
    number = tl.sum((keys > level).to(tl.int32), 0)
    mass = tl.sum(tl.where(keys > level, weights, 0.0).to(tl.float64), 0)
    tied = tl.sum(((keys == level) & (ids <= most)).to(tl.int32), 0)
    for tile in range(1, tl.cdiv(count, TILE)):
        i, k, w = candidates(rows, lists, row, b, n, shift, rate, listed, count, tile, SHIFT, TILE, GROUP)
        number += tl.sum((k > level).to(tl.int32), 0)
        mass += tl.sum(tl.where(k > level, w, 0.0).to(tl.float64), 0)
        tied += tl.sum(((k == level) & (i <= most)).to(tl.int32), 0)
    return number, mass, tied


@triton.jit
def cut(
    rows, law, stats, lists, limits, b, n, N, S,
    GROUP: tl.constexpr, SP: tl.constexpr, GP: tl.constexpr, TILE: tl.constexpr, SWEEP: tl.constexpr,
    SHIFT: tl.constexpr, GREEDY: tl.constexpr,
):  # fmt: skip
    """The law of row n of sequence b, once all of it is measured."""
    row = b * N + n
    c = tl.arange(0, SP)
    peaks = tl.load(stats.peak + row * S + c, mask=c < S, other=float("-inf"), volatile=True)
    norms = tl.load(stats.norm + row * S + c, mask=c < S, other=0.0, volatile=True)
    peak = tl.max(peaks, 0)
    rate, greedy = slope(rows, b)
    shift = shift_of(peak, rate)
    norm = tl.sum((norms * tl.exp2(shift_of(peaks, rate) - shift)).to(tl.float64), 0)
    cutoff = tl.full((), float("-inf"), tl.float32)
    first = tl.zeros((), tl.int32)
    if GREEDY:
        firsts = tl.load(stats.first + row * S + c, mask=c < S, other=2147483647, volatile=True)
        first = tl.where(greedy, tl.min(tl.where(peaks == peak, firsts, 2147483647), 0), 0)
    k = tl.load(limits[0] + b)
    k = tl.where(k >= rows.size, 0, k)
    share = tl.load(limits[1] + b)
    least = tl.load(limits[2] + b)
    sound = (norm > 0) & (norm < float("inf"))
    tl.store(lists.count + row, -1)
    if sound & (greedy == 0) & ((k > 0) | (share < 1) | (least > 0)):
        cutoff, first, norm = bisect(
            rows, stats, lists, row, b, n, peak, shift, norm, rate, k, share, least, GROUP, GP, TILE, SWEEP, SHIFT
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
    best = tl.load(stats.group + row * lists.limit + g, mask=there, other=float("-inf"), volatile=True)
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
                shares = tl.load(stats.share + row * lists.limit + g, mask=there, other=0.0, volatile=True)
                shares *= tl.exp2(lane_shift(best, rate) - shift)
                weights = tl.exp2(tl.fma(best, rate, -shift))
                floor = surely(groups, weights, shares, share * norm, shift, rate, floor, top, GROUP, SHIFT)
    listed, count = gather(rows, lists, groups, row, b, n, floor, SHIFT, SWEEP, GROUP, GP)
    ids, keys, weights = candidates(rows, lists, row, b, n, shift, rate, listed, count, 0, SHIFT, TILE, GROUP)
    cutoff, first, spare = floor, floor * 0, floor * 0
    # Four searches of one form, for the lowest value that fits: the k-th largest score; the score with less than
    # `share` of the mass above it; the id of the first of its equals that stays; the score that min-p lets stay.
    for search in range(4):
        ties = search == 2
        low = tl.where(ties, 0, cutoff)
        high = tl.where(ties, rows.size - 1, top)
        wanted = ((search == 0) & (k > 0)) | ((search == 1) & (share < 1)) | (ties & (spare > 0))
        wanted = wanted | ((search == 3) & (least > 0))
        while wanted:
            mid = lower(low, high)
            number, mass, tied = above(
                rows, lists, row, b, n, shift, rate, listed, count, ids, keys, weights,
                tl.where(ties, cutoff, mid), tl.where(ties, mid, rows.size), SHIFT, TILE, GROUP,
            )  # fmt: skip
            each = tl.exp2(tl.fma(unkey(mid, SHIFT), rate, -shift)).to(tl.float64)
            if low < high:
                fits = (
                    ((search == 0) & (number < k)) | ((search == 1) & (mass < share * norm)) | (ties & (tied > spare))
                )
                fits = fits | ((search == 3) & (tl.exp2((unkey(mid, SHIFT) - peak) * rate) >= least))
                high = tl.where(fits, mid, high)
                low = tl.where(fits, low, mid + 1)
            else:
                wanted = low > high
                if search == 1:  # of equal scores as many are cut as fit into the mass to cut
                    rest = tl.floor(((1.0 - share) * norm - (norm - mass - tied * each)) / tl.maximum(each, 1e-300))
                    rest = tl.minimum(tl.maximum(rest, 0.0), tl.maximum(tied - 1, 0).to(tl.float64))
                    spare = rest.to(tl.int32)
                first = tl.where(ties, low, tl.where((search == 3) & (low > cutoff), 0, first))
                changed = (search < 2) | ((search == 3) & ((low > cutoff) | ((share == 1) & (k == 0))))
                norm = tl.where(changed, mass + (tied - tl.where(search == 1, spare, 0)) * each, norm)
                cutoff = tl.where(changed, low, cutoff)
    return unkey(cutoff, SHIFT), first, norm
