# mypy: ignore-errors
"""Exact top-k, top-p and min-p without sorting (order of draftproof.controls): a cutoff score and a first id per row.

The first pass left the largest score of every group of GROUP tokens. The k-th largest of those is a floor for the k-th
largest score, so only groups that reach the floor are read again, mostly a few dozen, and their tokens that reach it
are listed for this kernel and the next. Top-p guesses a floor in the same way and lowers it until the tokens above hold
enough mass; none below (1 - top_p) / V can matter. The cutoff is then found by bisection on the scores' bits, which are
as ordered as the scores. Equal scores are kept or cut as the law does: all by top-k, the later ids by top-p.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from draftproof.kernels.device import score, slope
from draftproof.kernels.measure import decide


class Lists(NamedTuple):
    """Room to list what is read again."""

    groups: Any  # [B * N, limit] live groups
    limit: Any  # groups in a row
    ids: Any  # [B * N, room] candidate tokens in order
    room: Any
    count: Any  # [B * N] how many candidates are listed; -1 where nothing is truncated or they found no room


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
def candidates(
    rows, lists, row, b, n, peak, rate, listed, count, tile,
    SHIFT: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Ids, keys and weights of one tile of candidates: by the list of tokens if there is one, else by live groups."""
    i = tile * TILE + tl.arange(0, TILE)
    there = i < count
    if listed:
        ids = tl.load(lists.ids + row * lists.room + i, mask=there, other=0)
    else:
        ids = tl.load(lists.groups + row * lists.limit + i // GROUP, mask=there, other=0) * GROUP + i % GROUP
    s = score(rows, b, n, ids, there & (ids < rows.size))
    return ids, key(s, SHIFT), tl.exp2((s - peak) * rate)


@triton.jit
def tally(
    rows, lists, row, b, n, peak, rate, listed, count, ids, keys, weights, level, most,
    SHIFT: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Candidates above `level`: their number and mass; candidates at `level` with id up to `most`: their number.

    The first tile is at hand and mostly the only one.
    """
    number = tl.sum((keys > level).to(tl.int32), 0)
    weight = tl.sum(tl.where(keys > level, weights, 0.0).to(tl.float64), 0)
    tied = tl.sum(((keys == level) & (ids <= most)).to(tl.int32), 0)
    for tile in range(1, tl.cdiv(count, TILE)):
        i, k, w = candidates(rows, lists, row, b, n, peak, rate, listed, count, tile, SHIFT, TILE, GROUP)
        number += tl.sum((k > level).to(tl.int32), 0)
        weight += tl.sum(tl.where(k > level, w, 0.0).to(tl.float64), 0)
        tied += tl.sum(((k == level) & (i <= most)).to(tl.int32), 0)
    return number, weight, tied


@triton.jit
def gather(
    rows, lists, groups, row, b, n, peak, rate, floor,
    SHIFT: tl.constexpr, SWEEP: tl.constexpr, GROUP: tl.constexpr, GP: tl.constexpr,
):  # fmt: skip
    """List the groups that reach the floor, then the tokens in them that do; whether there was room, and how many."""
    g = tl.arange(0, GP)
    live = (g < lists.limit) & (groups >= floor)
    tl.store(lists.groups + row * lists.limit + tl.cumsum(live.to(tl.int32), 0) - 1, g, mask=live)
    tl.debug_barrier()
    count = tl.sum(live.to(tl.int32), 0) * GROUP
    found = count * 0
    for tile in range(tl.cdiv(count, SWEEP)):
        ids, keys, weights = candidates(rows, lists, row, b, n, peak, rate, 0, count, tile, SHIFT, SWEEP, GROUP)
        reach = (keys >= floor) & (weights > 0)
        place = found + tl.cumsum(reach.to(tl.int32), 0) - 1
        tl.store(lists.ids + row * lists.room + place, ids, mask=reach & (place < lists.room))
        found += tl.sum(reach.to(tl.int32), 0)
    tl.debug_barrier()
    listed = found <= lists.room
    tl.store(lists.count + row, tl.where(listed, found, -1))
    return listed, tl.where(listed, found, count)


@triton.jit
def cut(
    rows, law, draft, draft_law, stats, state, lists, top_k, top_p, min_p, N, S,
    GROUP: tl.constexpr, NP: tl.constexpr, SP: tl.constexpr, GP: tl.constexpr, TILE: tl.constexpr,
    SWEEP: tl.constexpr, SHIFT: tl.constexpr, GREEDY: tl.constexpr,
):  # fmt: skip
    """Program b * N + n: the law of row n of sequence b. The last row of a sequence to finish decides."""
    row = tl.program_id(0).to(tl.int64)
    b = row // N
    n = (row % N).to(tl.int32)
    used = n == 0
    if n > 0:
        used = tl.load(rows.tokens + b * rows.drafts + rows.node + n - 1) >= 0
    if used:
        c = tl.arange(0, SP)
        peaks = tl.load(stats.peak + row * S + c, mask=c < S, other=float("-inf"))
        norms = tl.load(stats.norm + row * S + c, mask=c < S, other=0.0)
        peak = tl.max(peaks, 0)
        base = tl.where(peak == float("-inf"), 0.0, peak)
        rate, greedy = slope(rows, b)
        norm = tl.sum((norms * tl.exp2((peaks - base) * rate)).to(tl.float64), 0)
        cutoff = tl.full((), float("-inf"), tl.float32)
        first = tl.zeros((), tl.int32)
        if GREEDY:
            firsts = tl.load(stats.first + row * S + c, mask=c < S, other=2147483647)
            first = tl.where(greedy, tl.min(tl.where(peaks == peak, firsts, 2147483647), 0), 0)
        k = tl.load(top_k + b)
        k = tl.where(k >= rows.size, 0, k)
        share = tl.load(top_p + b)
        least = tl.load(min_p + b)
        sound = (norm > 0) & (norm < float("inf"))
        tl.store(lists.count + row, -1)
        if sound & (greedy == 0) & ((k > 0) | (share < 1) | (least > 0)):
            cutoff, first, norm = bisect(
                rows, stats, lists, row, b, n, peak, norm, rate, k, share, least, SHIFT, TILE, SWEEP, GROUP, GP
            )
        at = b * law.stride + n
        tl.store(law.peak + at, base)
        tl.store(law.scale + at, tl.where(norm > 0, 1.0 / norm, norm - 1.0).to(tl.float32))
        tl.store(law.cutoff + at, cutoff)
        tl.store(law.first + at, first)
    tl.debug_barrier()
    if tl.atomic_add(state.arrived + b, 1, sem="acq_rel") == N - 1:
        tl.store(state.arrived + b, 0)
        node = tl.arange(0, NP)
        at = b * law.stride + node
        there = node < N
        decide(
            rows, law, draft, draft_law, state, b,
            tl.load(law.peak + at, mask=there, other=0.0, volatile=True),
            tl.load(law.scale + at, mask=there, other=0.0, volatile=True),
            tl.load(law.cutoff + at, mask=there, other=0.0, volatile=True),
            tl.load(law.first + at, mask=there, other=0, volatile=True),
            N, NP,
        )  # fmt: skip


@triton.jit
def kth(groups, k, lowest, top, limit, GP: tl.constexpr):
    """The k-th largest of the groups' keys, but at least `lowest`, which is also the answer if there are fewer."""
    g = tl.arange(0, GP)
    floor = tl.maximum(tl.min(tl.where(g < limit, groups, top), 0), lowest)
    floor = tl.where(k <= limit, floor, lowest)
    high = tl.where(k <= limit, top, lowest)
    while floor < high:
        mid = upper(floor, high)
        enough = tl.sum(((groups >= mid) & (g < limit)).to(tl.int32), 0) >= k
        floor = tl.where(enough, mid, floor)
        high = tl.where(enough, high, mid - 1)
    return floor


@triton.jit
def weight_of(
    rows, lists, row, b, n, peak, rate, listed, count, floor,
    SHIFT: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The mass of all candidates that reach the floor."""
    weight = tl.zeros((), tl.float64)
    for tile in range(tl.cdiv(count, TILE)):
        _ids, keys, weights = candidates(rows, lists, row, b, n, peak, rate, listed, count, tile, SHIFT, TILE, GROUP)
        weight += tl.sum(tl.where(keys >= floor, weights, 0.0).to(tl.float64), 0)
    return weight


@triton.jit
def bisect(
    rows, stats, lists, row, b, n, peak, norm, rate, k, share, least,
    SHIFT: tl.constexpr, TILE: tl.constexpr, SWEEP: tl.constexpr, GROUP: tl.constexpr, GP: tl.constexpr,
):  # fmt: skip
    """Cutoff, first id and normaliser of one row under top-k, then top-p, then min-p."""
    g = tl.arange(0, GP)
    groups = tl.load(stats.group + row * lists.limit + g, mask=g < lists.limit, other=float("-inf"))
    groups = key(groups, SHIFT)
    top = key(peak, SHIFT)
    lowest = key(tl.full((), float("-inf"), tl.float32), SHIFT)
    if k == 0:  # the whole row's mass is known, and tokens that are too light to stay need not be read
        bound = tl.maximum(tl.where(share < 1, (1.0 - share) * norm / rows.size, 0.0), least).to(tl.float32)
        drop = tl.where(bound > 0, tl.log2(tl.maximum(bound, 1e-37)) - 0.01, float("-inf"))
        lowest = key(peak + drop / rate, SHIFT)
    # Top-k reads the groups that may hold its k tokens. Top-p guesses that few will do and tries more if they do not.
    guess = tl.where(k > 0, k, tl.where(share < 1, 96, lists.limit))
    floor = kth(groups, guess, lowest, top, lists.limit, GP)
    listed, count = gather(rows, lists, groups, row, b, n, peak, rate, floor, SHIFT, SWEEP, GROUP, GP)
    enough = (k > 0) | (floor <= lowest)
    while enough == 0:
        enough = weight_of(rows, lists, row, b, n, peak, rate, listed, count, floor, SHIFT, TILE, GROUP) >= share * norm
        if enough == 0:
            guess *= 6
            floor = kth(groups, guess, lowest, top, lists.limit, GP)
            listed, count = gather(rows, lists, groups, row, b, n, peak, rate, floor, SHIFT, SWEEP, GROUP, GP)
            enough = floor <= lowest
    ids, keys, weights = candidates(rows, lists, row, b, n, peak, rate, listed, count, 0, SHIFT, TILE, GROUP)
    cutoff = floor
    if k > 0:  # the k-th largest score
        high = top
        while cutoff < high:
            mid = upper(cutoff, high)
            number, _weight, _tied = tally(
                rows, lists, row, b, n, peak, rate, listed, count, ids, keys, weights, mid - 1, -1, SHIFT, TILE, GROUP
            )
            cutoff = tl.where(number >= k, mid, cutoff)
            high = tl.where(number >= k, high, mid - 1)
        _number, norm, _tied = tally(
            rows, lists, row, b, n, peak, rate, listed, count, ids, keys, weights, cutoff - 1, -1, SHIFT, TILE, GROUP
        )
    first = tl.zeros((), tl.int32)
    if share < 1:  # the lowest score with less than `share` of the mass above it
        high = top
        while cutoff < high:
            mid = lower(cutoff, high)
            _number, above, _tied = tally(
                rows, lists, row, b, n, peak, rate, listed, count, ids, keys, weights, mid, -1, SHIFT, TILE, GROUP
            )
            fits = above < share * norm
            high = tl.where(fits, mid, high)
            cutoff = tl.where(fits, cutoff, mid + 1)
        _number, above, ties = tally(
            rows, lists, row, b, n, peak, rate, listed, count, ids, keys, weights, cutoff, rows.size, SHIFT, TILE, GROUP
        )
        each = tl.exp2((unkey(cutoff, SHIFT) - peak) * rate).to(tl.float64)
        below = norm - above - ties * each
        spare = tl.floor(((1.0 - share) * norm - below) / tl.maximum(each, 1e-300))  # ties within the mass to cut
        spare = tl.minimum(tl.maximum(spare, 0.0), tl.maximum(ties - 1, 0).to(tl.float64)).to(tl.int32)
        norm = above + (ties - spare) * each
        if spare > 0:  # the id of the first tie that stays
            high = rows.size - 1
            while first < high:
                mid = lower(first, high)
                _number, _weight, upto = tally(
                    rows, lists, row, b, n, peak, rate, listed, count, ids, keys, weights, cutoff, mid,
                    SHIFT, TILE, GROUP,
                )  # fmt: skip
                high = tl.where(upto > spare, mid, high)
                first = tl.where(upto > spare, first, mid + 1)
    if least > 0:
        low = cutoff
        high = top
        while low < high:
            mid = lower(low, high)
            fits = tl.exp2((unkey(mid, SHIFT) - peak) * rate) >= least
            high = tl.where(fits, mid, high)
            low = tl.where(fits, low, mid + 1)
        if (low > cutoff) | ((share == 1) & (k == 0)):
            _number, norm, _tied = tally(
                rows, lists, row, b, n, peak, rate, listed, count, ids, keys, weights, low - 1, -1, SHIFT, TILE, GROUP
            )
            first = tl.zeros((), tl.int32)
            cutoff = low
    return unkey(cutoff, SHIFT), first, norm
