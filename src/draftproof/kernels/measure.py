# mypy: ignore-errors
"""First pass: every target row is read once, for its normaliser; then each sequence decides how far its draft goes.

Token and one-hot rules are settled there. Block verification settles there too unless the uniform falls between what
the weights alone can decide; then the excess of the nodes in question is summed first.
"""

import triton
import triton.language as tl

from draftproof.kernels.device import lane_shift, plain, score, shift_of, slope, uniform, weigh

LATE: tl.constexpr = tl.constexpr(2147483647)  # no token has this id


@triton.jit
def measure(
    rows, stats, b, n, N, c, S, G,
    SPAN: tl.constexpr, TILE: tl.constexpr, LANE: tl.constexpr, GREEDY: tl.constexpr,
):  # fmt: skip
    """Span c of row n, tile by tile: each lane of LANE tokens keeps its own peak and sum, and they meet at the end.

    So the threads need not wait for one another while they read.
    """
    rate, _ = slope(rows, b)
    peaks = tl.full((TILE // LANE,), float("-inf"), tl.float32)
    norms = tl.zeros((TILE // LANE,), tl.float32)
    firsts = tl.zeros((TILE // LANE,), tl.int32)
    end = tl.minimum(c * (SPAN // TILE) + SPAN // TILE, tl.cdiv(rows.size, TILE))
    full = tl.minimum(end, rows.size // TILE)  # the last tile may be shorter
    for t in tl.range(c * (SPAN // TILE), full, num_stages=1 if SPAN == TILE else 4):
        peaks, norms, firsts = tally(rows, stats, b, n, N, t, G, rate, peaks, norms, firsts, True, TILE, LANE, GREEDY)
    if full < end:
        peaks, norms, firsts = tally(
            rows, stats, b, n, N, end - 1, G, rate, peaks, norms, firsts, False, TILE, LANE, GREEDY
        )
    peak = tl.max(peaks, 0)
    at = (b * N + n) * S + c
    tl.store(stats.peak + at, peak)
    tl.store(stats.norm + at, tl.sum(norms * tl.exp2(lane_shift(peaks, rate) - shift_of(peak, rate)), 0))
    if GREEDY:
        tl.store(stats.first + at, tl.min(tl.where(peaks == peak, firsts, LATE), 0))


@triton.jit
def tally(
    rows, stats, b, n, N, t, G, rate, peaks, norms, firsts,
    FULL: tl.constexpr, TILE: tl.constexpr, LANE: tl.constexpr, GREEDY: tl.constexpr,
):  # fmt: skip
    """The lanes' peaks, sums and first ids of their peaks with tile t added."""
    lane = tl.arange(0, TILE // LANE)
    ids = t * TILE + lane[:, None] * LANE + tl.arange(0, LANE)[None, :]
    s = score(rows, b, n, ids, None if FULL else ids < rows.size)
    top = tl.max(s, 1)
    higher = tl.maximum(peaks, top)
    shift = lane_shift(higher, rate)
    norm = tl.sum(tl.exp2(tl.fma(s, rate, -shift[:, None])), 1)
    if GREEDY:
        firsts = tl.where(top > peaks, tl.min(tl.where(s == top[:, None], ids, LATE), 1), firsts)
    if stats.group is not None:  # a lane's part of a tile is a group
        at = (b * N + n) * G + t * (TILE // LANE) + lane
        tl.store(stats.group + at, top)
        if stats.share is not None:
            tl.store(stats.share + at, norm * tl.exp2(shift - lane_shift(top, rate)))
    return higher, norms * tl.exp2(lane_shift(peaks, rate) - shift) + norm, firsts


@triton.jit
def combine(rows, law, stats, b, N, S, used, NP: tl.constexpr, SP: tl.constexpr, GREEDY: tl.constexpr):
    """The laws of a sequence's rows from those of their chunks, where nothing is truncated."""
    n = tl.arange(0, NP)
    c = tl.arange(0, SP)
    at = (b * N + n[:, None]) * S + c[None, :]
    there = (n < N)[:, None] & (c < S)[None, :]
    peaks = tl.load(stats.peak + at, mask=there, other=float("-inf"), volatile=True)
    norms = tl.load(stats.norm + at, mask=there, other=0.0, volatile=True)
    peaks = tl.where(used[:, None], peaks, float("-inf"))  # rows after a draft's end were not measured
    norms = tl.where(used[:, None], norms, 0.0)
    best = tl.max(peaks, 1)
    rate, greedy = slope(rows, b)
    shift = shift_of(best, rate)
    norm = tl.sum((norms * tl.exp2(shift_of(peaks, rate) - shift[:, None])).to(tl.float64), 1)
    scale = tl.where(norm > 0, 1.0 / norm, norm - 1.0).to(tl.float32)
    first = tl.zeros((NP,), tl.int32)
    if GREEDY:
        firsts = tl.load(stats.first + at, mask=there, other=LATE, volatile=True)
        first = tl.where(greedy, tl.min(tl.where(peaks == best[:, None], firsts, LATE), 1), 0)
    out = b * law.stride + n
    tl.store(law.shift + out, shift, mask=n < N)
    tl.store(law.scale + out, scale, mask=n < N)
    if law.first is not None:
        tl.store(law.first + out, first, mask=n < N)
    return shift, scale, first


@triton.jit
def decide(
    rows, law, draft, draft_law, stats, lists, state, b, N, S, NP: tl.constexpr, SP: tl.constexpr, GREEDY: tl.constexpr
):
    """Where a sequence's draft stops, or between which nodes; and whether the excess of any is still to be summed."""
    n = tl.arange(0, NP)
    x = tl.load(rows.tokens + b * plain(rows.drafts) + plain(rows.node) + n, mask=n < N - 1, other=-1)
    length = tl.min(tl.where((x >= 0) & (x < rows.size), NP, n))
    fault = tl.where(tl.sum(((x >= rows.size) & (n == length)).to(tl.int32)) > 0, 2, 0)
    guess = tl.where(n < length, x, 0)
    # What can be read before the rows' laws are there is read first.
    u, rule = 0.0, 0
    if state.rule is not None:
        u = uniform(state, b, 1, 0)
        rule = tl.load(state.rule + b)
    s = score(rows, b, n, guess, n < length)
    t = s
    if draft.logits is not None:
        t = score(draft, b, n, guess, n < length)
        at = b * draft_law.stride + n
        known = tl.load(draft_law.scale + at, mask=n < length, other=1.0)
        top = tl.load(draft_law.shift + at, mask=n < length, other=0.0)
        edge, start = top, tl.zeros((NP,), tl.int32)
        if draft_law.cutoff is not None:
            edge = tl.load(draft_law.cutoff + at, mask=n < length, other=0.0)
        if draft_law.first is not None:
            start = tl.load(draft_law.first + at, mask=n < length, other=0)
        pace, certain = slope(draft, b)
    rate, greedy = slope(rows, b)
    if law.cutoff is None:
        before = tl.load(
            rows.tokens + b * plain(rows.drafts) + plain(rows.node) + n - 1, mask=(n > 0) & (n < N), other=-1
        )
        shift, scale, first = combine(rows, law, stats, b, N, S, (n == 0) | (before >= 0), NP, SP, GREEDY)
        cutoff = shift
    else:
        at = b * law.stride + n
        shift = tl.load(law.shift + at, mask=n < N, other=0.0, volatile=True)
        scale = tl.load(law.scale + at, mask=n < N, other=0.0, volatile=True)
        cutoff = tl.load(law.cutoff + at, mask=n < N, other=0.0, volatile=True)
        first = tl.load(law.first + at, mask=n < N, other=0, volatile=True)
    stop, low, high = length * 0, length * 0, length * 0
    onehot = length < 0
    if state.rule is not None:
        onehot = rule == 2
        q = tl.full((NP,), 1.0, tl.float32)
        if draft.logits is not None:
            broken = tl.min(tl.where((n < length) & ~onehot & ~(known > 0), n, length))
            fault += tl.where(broken < length, 4, 0)
            length = broken
            q = tl.where(onehot, q, weigh(draft_law, t, guess, top, known, edge, start, pace, certain))
        p = tl.where(n < length, weigh(law, s, guess, shift, scale, cutoff, first, rate, greedy), 0.0)
        fault += tl.where(tl.sum(((n < length) & (q == 0)).to(tl.int32)) > 0, 8, 0)
        drawn = (n < length) & (q > 0)
        ratio = tl.where(drawn, p.to(tl.float64) / tl.where(drawn, q, 1.0), 0.0)
        tl.store(state.chance + b * N + n, p.to(tl.float64), mask=n < N)
        stop, low, high = walk(state, b, n, u, ratio, length, N, rule)
    lost = tl.sum(((n <= length) & ~(scale > 0)).to(tl.int32)) > 0
    low = tl.where(lost | greedy, 1, low)
    high = tl.where(lost | greedy, 0, high)
    facts = state.facts + 8 * b
    tl.store(facts, tl.where(lost, 0, stop).to(tl.int32))
    tl.store(facts + 1, low.to(tl.int32))
    tl.store(facts + 2, high.to(tl.int32))
    tl.store(facts + 3, length.to(tl.int32))
    tl.store(facts + 4, (fault + tl.where(lost, 1, 0)).to(tl.int32))
    if state.rule is not None:
        tl.store(facts + 5, rule)
    wanted = (n >= low) & (n <= high) & (n < length) & ~onehot
    if lists.count is not None:
        wanted = wanted & (tl.load(lists.count + b * N + n, mask=n < N, other=-1, volatile=True) < 0)
    return tl.sum(wanted.to(tl.int32)) > 0


@triton.jit
def walk(state, b, n, u, ratio, length, N, rule):
    """Along the chain: token acceptances, and block verification's weights w_i = min(1, w_{i-1} ratio_i)."""
    reach = tl.full((), 1.0, tl.float64)
    w = tl.full((), 1.0, tl.float64)
    below = tl.full((), 1.0, tl.float64)  # product of 1 - w_j over the nodes after the last one with w = 1
    stop = length * 0
    sure = length * 0
    weights = tl.where(n == 0, 1.0, 0.0).to(tl.float64)
    for i in range(N - 1):
        r = tl.sum(tl.where(n == i, ratio, 0.0))
        reach *= tl.minimum(r, 1.0)
        stop += ((i < length) & (1.0 - reach <= u)).to(tl.int32)
        w = tl.minimum(w * r, 1.0)
        inside = i < length
        weights = tl.where((n == i + 1) & inside, w, weights)
        certain = inside & (w == 1.0)
        sure = tl.where(certain, i + 1, sure)
        below = tl.where(certain, 1.0, tl.where(inside, below * (1.0 - w), below))
    low, high = stop, stop
    if rule == 1:
        last = tl.sum(tl.where(n == length, weights, 0.0))
        decided = (u >= 1.0 - last) | (u < below)
        found = tl.where(u >= 1.0 - last, length, sure)
        stop = tl.where(decided, found, -1)
        low = tl.where(decided, found, sure)
        high = tl.where(decided, found, length - 1)
        tl.store(state.weight + b * N + n, weights, mask=n < N)
    else:
        tl.store(state.weight + b * N + n, tl.full(n.shape, 1.0, tl.float64), mask=n < N)
    return stop, low, high
