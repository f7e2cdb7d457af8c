# mypy: ignore-errors
"""Second pass: the excess (w p - q)+ of the nodes that may be the last, chunk by chunk; then one token from it.

A chunk that q does not touch (no draft, or a one-hot draft elsewhere) takes its sum from the first pass and reads
nothing. The last program of a sequence to finish finds the chunk in which the cumulated excess crosses the uniform and
reads that chunk alone once more.
"""

import triton
import triton.language as tl

from draftproof.kernels.device import mass, slope, uniform


@triton.jit
def rest(rows, law, draft, draft_law, stats, state, b, n, w, plain, ids, N, S, C: tl.constexpr, GROUP: tl.constexpr):
    """(w p - q)+ of tokens `ids` in row n; p itself if `plain`."""
    inside = ids < rows.size
    if stats.group is not None:  # groups that are cut as a whole are not read
        best = tl.load(stats.group + (b * N + n) * S * (C // GROUP) + ids // GROUP, mask=inside, other=float("-inf"))
        inside = inside & (best >= tl.load(law.cutoff + b * law.stride + n))
    p = mass(rows, law, b, n, ids, inside)
    q = tl.zeros_like(p)
    if state.rule is not None:
        drawn = n < tl.load(state.length + b) * (1 - plain)
        if tl.load(state.rule + b) == 2:
            x = tl.load(rows.tokens + b * rows.drafts + tl.minimum(n, rows.drafts - 1))
            q = ((ids == x) & drawn).to(tl.float32)
        elif draft.logits is not None:
            inside = inside & (ids < tl.where(drawn, rows.size, 0))
            if stats.group is not None:
                inside = inside & (p > 0)
            q = tl.where(inside, mass(draft, draft_law, b, tl.minimum(n, rows.drafts - 1), ids, inside), 0.0)
    return tl.maximum(w * p - q, 0.0)


@triton.jit
def listed(lists, row):
    """How many candidate tokens of a row are listed, -1 for none."""
    count = tl.full((), -1, tl.int32)
    if lists.count is not None:
        count = tl.load(lists.count + row)
    return count


@triton.jit
def place(lists, row, start, i, end):
    """Token ids at places i below `end`: of the row's list if start < 0, else of the vocabulary from `start` on."""
    ids = start + i
    if lists.count is not None:  # noqa: SIM102  (known when the kernel is compiled; the next when it runs)
        if start < 0:
            ids = tl.load(lists.ids + row * lists.room + i, mask=i < end, other=2147483647)
    return ids


@triton.jit
def total(
    rows, law, draft, draft_law, stats, lists, state, b, n, w, plain, start, end, N, S,
    C: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum of `rest` over the places below `end`."""
    part = tl.zeros((BLOCK,), tl.float32)
    for o in range(0, end, BLOCK):
        ids = place(lists, b * N + n, start, o + tl.arange(0, BLOCK), end)
        part += rest(rows, law, draft, draft_law, stats, state, b, n, w, plain, ids, N, S, C, GROUP)
    return tl.sum(part, 0)


@triton.jit
def emit(
    rows, law, draft, draft_law, stats, lists, state, tokens, accepted, logprob, fault, N, S,
    C: tl.constexpr, GROUP: tl.constexpr, NP: tl.constexpr, SP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (c, b): excess of chunk c for each node wanted; the last of a sequence writes the outcome."""
    c = tl.program_id(0)
    b = tl.program_id(1).to(tl.int64)
    low = tl.load(state.low + b)
    high = tl.load(state.high + b)
    alone = low > high  # nothing to sum, or lists so short that one program does it all
    if lists.count is not None:
        short = True
        for n in range(low, high + 1):
            short = short & (tl.load(lists.count + b * N + n) >= 0)
        alone = alone | short
    last = c == 0
    if last | (alone == 0):
        for n in range(low, high + 1):
            excess(rows, law, draft, draft_law, stats, lists, state, b, n, c, N, S, C, GROUP, BLOCK)
        tl.debug_barrier()
        if alone == 0:
            last = tl.atomic_add(state.arrived + tl.num_programs(1) + b, 1, sem="acq_rel") == S - 1
        if last:
            tl.store(state.arrived + tl.num_programs(1) + b, 0)
            finish(
                rows, law, draft, draft_law, stats, lists, state, tokens, accepted, logprob, fault, b, N, S,
                C, GROUP, NP, SP, BLOCK,
            )  # fmt: skip


@triton.jit
def excess(
    rows, law, draft, draft_law, stats, lists, state, b, n, c, N, S,
    C: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the excess of chunk c of row n. A row with a list counts as one chunk."""
    w = tl.load(state.weight + b * N + n).to(tl.float32)
    count = listed(lists, b * N + n)
    start, end = c * C, tl.minimum(C, rows.size - c * C)
    touched = stats.group is not None
    if count >= 0:
        start, end = start * 0 - 1, tl.where(c == 0, count, 0)
    elif state.rule is not None:
        x = tl.load(rows.tokens + b * rows.drafts + tl.minimum(n, rows.drafts - 1))
        mine = (tl.load(state.rule + b) != 2) | (x // C == c)
        touched = touched | ((n < tl.load(state.length + b)) & mine)
    at = (b * N + n) * S + c
    if touched:
        end = tl.where(w > 0, end, 0)
        part = total(rows, law, draft, draft_law, stats, lists, state, b, n, w, 0, start, end, N, S, C, GROUP, BLOCK)
        tl.store(state.excess + at, part)
    else:
        rate, _ = slope(rows, b)
        share = tl.exp2((tl.load(stats.peak + at) - tl.load(law.peak + b * law.stride + n)) * rate)
        tl.store(state.excess + at, w * tl.load(stats.norm + at) * share * tl.load(law.scale + b * law.stride + n))


@triton.jit
def finish(
    rows, law, draft, draft_law, stats, lists, state, tokens, accepted, logprob, fault, b, N, S,
    C: tl.constexpr, GROUP: tl.constexpr, NP: tl.constexpr, SP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The stopping node if it is still open, the token after it, and the outcome."""
    stop = tl.load(state.stop + b)
    low = tl.load(state.low + b)
    if stop < 0:
        stop = settle(lists, state, b, low, N, S, SP)
    flags = tl.load(state.fault + b)
    tl.store(fault + b, flags)
    token = stop * 0
    if law.first is not None:
        token = tl.load(law.first + b * law.stride + stop)  # of a greedy row
    if low <= tl.load(state.high + b):
        token = pick(rows, law, draft, draft_law, stats, lists, state, b, stop, N, S, C, GROUP, SP, BLOCK)
    token = tl.where((flags & 1) != 0, 0, token)
    n = tl.arange(0, NP)
    x = tl.load(rows.tokens + b * rows.drafts + n, mask=n < stop, other=-1)
    tl.store(tokens + b * N + n, tl.where(n == stop, token, x).to(tl.int64), mask=n < N)
    tl.store(accepted + b, stop)
    one = tl.zeros((1,), tl.int32)
    p = mass(rows, law, b, stop + one, token + one, one == 0)
    chance = tl.load(state.chance + b * N + n, mask=n < stop, other=1.0).to(tl.float32)
    chance = tl.where((n == stop) & ((flags & 1) == 0), tl.sum(p, 0), chance)
    tl.store(logprob + b * N + n, tl.log(chance), mask=n < N)


@triton.jit
def sums_of(lists, state, b, n, N, S, SP: tl.constexpr):
    """[SP] excess of each chunk of row n, in float64; a listed row has but one."""
    c = tl.arange(0, SP)
    chunks = tl.where(listed(lists, b * N + n) >= 0, 1, S)
    at = state.excess + (b * N + n) * S + c
    return tl.load(at, mask=c < chunks, other=0.0, volatile=True).to(tl.float64)


@triton.jit
def settle(lists, state, b, low, N, S, SP: tl.constexpr):
    """Block verification's scan from the back: node n is taken with h = Z / (Z + 1 - w), Z the sum of its excess."""
    length = tl.load(state.length + b)
    u = uniform(state, b, 1, 0)
    beyond = 1.0 - tl.load(state.weight + b * N + length)  # probability to stop before the node at hand
    stop = low
    n = length - 1
    while n > low:
        w = tl.load(state.weight + b * N + n)
        z = tl.sum(sums_of(lists, state, b, n, N, S, SP), 0)
        beyond *= 1.0 - z / (z + 1.0 - w)
        taken = u >= beyond
        stop = tl.where(taken, n, stop)
        n = tl.where(taken, low, n - 1)
    return stop


@triton.jit
def pick(
    rows, law, draft, draft_law, stats, lists, state, b, stop, N, S,
    C: tl.constexpr, GROUP: tl.constexpr, SP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The token at which the cumulated excess of the stopping node first exceeds u times its total."""
    c = tl.arange(0, SP)
    w = tl.load(state.weight + b * N + stop).to(tl.float32)
    count = listed(lists, b * N + stop)
    sums = sums_of(lists, state, b, stop, N, S, SP)
    plain = 0
    if tl.sum(sums, 0) <= 0:  # probability zero but for rounding: p stands in, as in law.residual
        plain = 1
        w = tl.zeros((), tl.float32) + 1.0
        for k in range(tl.where(count >= 0, 1, S)):
            start = tl.where(count >= 0, -1, k * C)
            end = tl.where(count >= 0, count, C)
            part = total(
                rows, law, draft, draft_law, stats, lists, state, b, stop, w, 1, start, end, N, S, C, GROUP, BLOCK
            )
            sums = tl.where(c == k, part.to(tl.float64), sums)
    cumulated = tl.cumsum(sums, 0)
    threshold = uniform(state, b, state.lane, state.index) * tl.sum(sums, 0)
    last = tl.max(tl.where(sums > 0, c, 0), 0)
    chunk = tl.minimum(tl.sum((cumulated <= threshold).to(tl.int32), 0), last)
    running = tl.sum(tl.where(c < chunk, sums, 0.0), 0)
    start = tl.where(count >= 0, -1, chunk * C)
    end = tl.where(count >= 0, count, C)
    token = tl.full((), 2147483647, tl.int32)
    final = tl.zeros((), tl.int32)
    for o in range(0, end, BLOCK):
        ids = place(lists, b * N + stop, start, o + tl.arange(0, BLOCK), end)
        part = rest(rows, law, draft, draft_law, stats, state, b, stop, w, plain, ids, N, S, C, GROUP).to(tl.float64)
        reached = (running + tl.cumsum(part, 0) > threshold) & (part > 0)
        token = tl.minimum(token, tl.min(tl.where(reached, ids, 2147483647), 0))
        final = tl.maximum(final, tl.max(tl.where(part > 0, ids, 0), 0))
        running += tl.sum(part, 0)
    return tl.minimum(token, final)
