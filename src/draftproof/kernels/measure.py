# mypy: ignore-errors
"""First pass: every target row is read once, for its normaliser; then each sequence decides how far its draft goes.

The last program of a sequence to finish does the deciding, so it costs no launch of its own. Token and one-hot rules
are settled there. Block verification settles there too unless the uniform falls between what the weights alone can
decide; then the excess of the nodes in question is summed first.
"""

import triton
import triton.language as tl

from draftproof.kernels.device import score, slope, uniform, weigh


@triton.jit
def measure(
    rows, law, draft, draft_law, stats, state, N, S, P,
    C: tl.constexpr, CHUNKS: tl.constexpr, STAGES: tl.constexpr, GROUP: tl.constexpr, NP: tl.constexpr,
    SP: tl.constexpr, GREEDY: tl.constexpr,
):  # fmt: skip
    """Program i of P for row n of sequence b (flat: only a grid's first axis is long): CHUNKS chunks of the row."""
    start = tl.program_id(0) % P * CHUNKS
    row = tl.program_id(0) // P
    b = (row // N).to(tl.int64)
    n = row % N
    used = n == 0
    if n > 0:
        used = tl.load(rows.tokens + b * rows.drafts + rows.node + n - 1) >= 0
    if used:
        rate, _ = slope(rows, b)
        for c in tl.range(start, tl.minimum(start + CHUNKS, S), num_stages=STAGES):
            at = row.to(tl.int64) * S + c
            if stats.group is None:
                ids = c * C + tl.arange(0, C)
                s = score(rows, b, n, ids, ids < rows.size)
            else:
                r = tl.arange(0, C // GROUP)
                ids = c * C + r[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
                s = score(rows, b, n, ids, ids < rows.size)
                tl.store(stats.group + at * (C // GROUP) + r, tl.max(s, 1))
            peak = tl.max(s)
            base = tl.where(peak == float("-inf"), 0.0, peak)
            tl.store(stats.peak + at, peak)
            tl.store(stats.norm + at, tl.sum(tl.exp2((s - base) * rate)))
            if GREEDY:
                tl.store(stats.first + at, tl.min(tl.where(s == peak, ids, 2147483647)))
    if stats.group is None:
        tl.debug_barrier()
        if tl.atomic_add(state.arrived + b, 1, sem="acq_rel") == N * P - 1:
            tl.store(state.arrived + b, 0)
            peak, scale, first = combine(rows, law, stats, b, N, S, NP, SP, GREEDY)
            decide(rows, law, draft, draft_law, state, b, peak, scale, peak, first, N, NP)


@triton.jit
def combine(rows, law, stats, b, N, S, NP: tl.constexpr, SP: tl.constexpr, GREEDY: tl.constexpr):
    """The laws of a sequence's rows from those of their chunks, where nothing is truncated."""
    n = tl.arange(0, NP)
    child = tl.load(rows.tokens + b * rows.drafts + rows.node + n - 1, mask=(n > 0) & (n < N), other=-1)
    used = (n == 0) | (child >= 0)
    c = tl.arange(0, SP)
    at = (b * N + n[:, None]) * S + c[None, :]
    there = used[:, None] & (c < S)[None, :]
    peaks = tl.load(stats.peak + at, mask=there, other=float("-inf"), volatile=True)
    norms = tl.load(stats.norm + at, mask=there, other=0.0, volatile=True)
    best = tl.max(peaks, 1)
    peak = tl.where(best == float("-inf"), 0.0, best)
    rate, _ = slope(rows, b)
    norm = tl.sum((norms * tl.exp2((peaks - peak[:, None]) * rate)).to(tl.float64), 1)
    scale = tl.where(norm > 0, 1.0 / norm, norm - 1.0).to(tl.float32)
    first = tl.zeros((NP,), tl.int32)
    if GREEDY:
        firsts = tl.load(stats.first + at, mask=there, other=2147483647, volatile=True)
        greedy = tl.load(rows.temperature + b) == 0
        first = tl.where(greedy, tl.min(tl.where(peaks == best[:, None], firsts, 2147483647), 1), 0)
    out = b * law.stride + n
    tl.store(law.peak + out, peak, mask=n < N)
    tl.store(law.scale + out, scale, mask=n < N)
    if law.first is not None:
        tl.store(law.first + out, first, mask=n < N)
    return peak, scale, first


@triton.jit
def decide(rows, law, draft, draft_law, state, b, peak, scale, cutoff, first, N, NP: tl.constexpr):
    """Where a sequence's draft stops, or between which nodes; its rows' laws are given, [NP] each."""
    n = tl.arange(0, NP)
    x = tl.load(rows.tokens + b * rows.drafts + n, mask=n < N - 1, other=-1)
    length = tl.min(tl.where((x >= 0) & (x < rows.size), NP, n))
    fault = tl.where(tl.sum(((x >= rows.size) & (n == length)).to(tl.int32)) > 0, 2, 0)
    stop, low, high = length * 0, length * 0, length * 0
    _, greedy = slope(rows, b)
    if state.rule is not None:
        rule = tl.load(state.rule + b)
        known = tl.full((NP,), 1.0, tl.float32)
        if draft.logits is not None:
            at = b * draft_law.stride + n
            known = tl.load(draft_law.scale + at, mask=n < length, other=1.0)
            broken = tl.min(tl.where((n < length) & (rule != 2) & ~(known > 0), n, length))
            fault += tl.where(broken < length, 4, 0)
            length = broken
        guess = tl.where(n < length, x, 0)
        p = weigh(rows, law, b, n, guess, n < length, peak, scale, cutoff, first)
        q = tl.full((NP,), 1.0, tl.float32)
        if draft.logits is not None:
            top = tl.load(draft_law.peak + at, mask=n < length, other=0.0)
            edge, start = top, tl.zeros((NP,), tl.int32)
            if law.cutoff is not None:
                edge = tl.load(draft_law.cutoff + at, mask=n < length, other=0.0)
            if law.first is not None:
                start = tl.load(draft_law.first + at, mask=n < length, other=0)
            q = tl.where(rule == 2, q, weigh(draft, law, b, n, guess, n < length, top, known, edge, start))
        fault += tl.where(tl.sum(((n < length) & (q == 0)).to(tl.int32)) > 0, 8, 0)
        drawn = (n < length) & (q > 0)
        ratio = tl.where(drawn, p.to(tl.float64) / tl.where(drawn, q, 1.0), 0.0)
        tl.store(state.chance + b * N + n, tl.where(n < length, p, 0.0).to(tl.float64), mask=n < N)
        stop, low, high = walk(state, b, n, ratio, length, N, rule)
    lost = tl.sum(((n <= length) & ~(scale > 0)).to(tl.int32)) > 0
    tl.store(state.stop + b, tl.where(lost, 0, stop).to(tl.int32))
    tl.store(state.low + b, tl.where(lost | greedy, 1, low).to(tl.int32))
    tl.store(state.high + b, tl.where(lost | greedy, 0, high).to(tl.int32))
    tl.store(state.length + b, length.to(tl.int32))
    tl.store(state.fault + b, (fault + tl.where(lost, 1, 0)).to(tl.int32))


@triton.jit
def walk(state, b, n, ratio, length, N, rule):
    """Along the chain: token acceptances, and block verification's weights w_i = min(1, w_{i-1} ratio_i)."""
    u = uniform(state, b, 1, 0)
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
