# mypy: ignore-errors
"""Second pass: the excess (w p - q)+ of the nodes that may be the last, chunk by chunk; then one token from it.

Rows that q does not touch (no draft, or a one-hot draft) take their sums from the first pass, and rows whose candidates
are listed need no more than the list. To emit, one program a sequence finds the chunk in which the cumulated excess
crosses the uniform, and reads that chunk alone once more.
"""

import triton
import triton.language as tl

from draftproof.kernels.device import mass, slope, uniform


@triton.jit
def rest(rows, law, draft, draft_law, stats, state, b, n, w, onehot, plain, ids, N, G, GROUP: tl.constexpr):
    """(w p - q)+ of tokens `ids` in row n; p itself if `plain`, and all of q on the guess if `onehot`."""
    inside = ids < rows.size
    if stats.group is not None:  # groups that are cut as a whole are not read
        best = tl.load(stats.group + (b * N + n) * G + ids // GROUP, mask=inside, other=float("-inf"))
        inside = inside & (best >= tl.load(law.cutoff + b * law.stride + n))
    p = mass(rows, law, b, n, ids, inside)
    q = tl.zeros_like(p)
    if state.rule is not None:
        drawn = n < tl.load(state.length + b) * (1 - plain)
        if onehot:
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
    rows, law, draft, draft_law, stats, lists, state, b, n, w, onehot, plain, start, end, N, G,
    GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum of `rest` over the places below `end`."""
    part = tl.zeros((BLOCK,), tl.float32)
    for o in range(0, end, BLOCK):
        ids = place(lists, b * N + n, start, o + tl.arange(0, BLOCK), end)
        part += rest(rows, law, draft, draft_law, stats, state, b, n, w, onehot, plain, ids, N, G, GROUP)
    return tl.sum(part, 0)


@triton.jit
def excess(
    rows, law, draft, draft_law, stats, lists, state, N, E, G,
    GROUP: tl.constexpr, UNIT: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Program (b, c): excess of some units of the vocabulary, for each node that has no other sum."""
    b = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1)
    low = tl.load(state.low + b)
    high = tl.load(state.high + b)
    length = tl.load(state.length + b)
    rule = tl.load(state.rule + b)
    for n in range(low, high + 1):
        if (n < length) & (rule != 2) & (listed(lists, b * N + n) < 0):
            w = tl.load(state.weight + b * N + n).to(tl.float32)
            for unit in tl.range(c * UNITS, tl.minimum(c * UNITS + UNITS, E), num_stages=3):
                ids = unit * UNIT + tl.arange(0, UNIT)
                part = tl.sum(rest(rows, law, draft, draft_law, stats, state, b, n, w, 0, 0, ids, N, G, GROUP), 0)
                tl.store(state.excess + (b * N + n) * E + unit, part)


@triton.jit
def emit(
    rows, law, draft, draft_law, stats, lists, state, tokens, accepted, logprob, fault, N, S, E, G,
    C: tl.constexpr, GROUP: tl.constexpr, NP: tl.constexpr, EP: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
    SUMMED: tl.constexpr,
):  # fmt: skip
    """Program b: the stopping node if it is still open, the token after it, and the outcome."""
    b = tl.program_id(0).to(tl.int64)
    stop = tl.load(state.stop + b)
    low = tl.load(state.low + b)
    high = tl.load(state.high + b)
    flags = tl.load(state.fault + b)
    if stop < 0:
        stop = settle(
            rows, law, draft, draft_law, stats, lists, state, b, low, N, S, E, G, C, GROUP, EP, UNIT, BLOCK, SUMMED
        )
    token = stop * 0
    if law.first is not None:
        token = tl.load(law.first + b * law.stride + stop)  # of a greedy row
    if low <= high:
        token = pick(
            rows, law, draft, draft_law, stats, lists, state, b, stop, N, S, E, G, C, GROUP, EP, UNIT, BLOCK, SUMMED
        )
    token = tl.where((flags & 1) != 0, 0, token)
    n = tl.arange(0, NP)
    x = tl.load(rows.tokens + b * rows.drafts + n, mask=n < stop, other=-1)
    tl.store(tokens + b * N + n, tl.where(n == stop, token, x).to(tl.int64), mask=n < N)
    tl.store(accepted + b, stop)
    tl.store(fault + b, flags)
    one = tl.zeros((1,), tl.int32)
    p = mass(rows, law, b, stop + one, token + one, one == 0)
    chance = tl.load(state.chance + b * N + n, mask=n < stop, other=1.0).to(tl.float32)
    chance = tl.where((n == stop) & ((flags & 1) == 0), tl.sum(p, 0), chance)
    tl.store(logprob + b * N + n, tl.log(chance), mask=n < N)


@triton.jit
def sums_of(
    rows, law, draft, draft_law, stats, lists, state, b, n, w, plain, N, S, E, G,
    C: tl.constexpr, GROUP: tl.constexpr, EP: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
    SUMMED: tl.constexpr,
):  # fmt: skip
    """[EP] excess of row n in float64, by units of the vocabulary; and the unit, -1 for a list, which counts as one."""
    c = tl.arange(0, EP)
    row = b * N + n
    count = listed(lists, row)
    drawn = n != n
    onehot = n != n
    if state.rule is not None:
        onehot = tl.load(state.rule + b) == 2
        drawn = n < tl.load(state.length + b)
    whole = True
    if law.cutoff is not None:
        whole = tl.load(law.cutoff + b * law.stride + n) == float("-inf")
    unit = tl.full((), UNIT, tl.int32)
    sums = tl.zeros((EP,), tl.float64)
    if count >= 0:
        unit = tl.full((), -1, tl.int32)
        part = total(
            rows, law, draft, draft_law, stats, lists, state, b, n, w, onehot, plain, -1, count, N, G, GROUP, BLOCK
        )
        sums = tl.where(c == 0, part.to(tl.float64), sums)
    elif whole & ((drawn == 0) | onehot | (plain != 0)):  # the first pass has them
        unit = tl.full((), C, tl.int32)
        rate, _ = slope(rows, b)
        peaks = tl.load(stats.peak + row * S + c, mask=c < S, other=float("-inf"))
        norms = tl.load(stats.norm + row * S + c, mask=c < S, other=0.0)
        sums = (norms * tl.exp2((peaks - tl.load(law.peak + b * law.stride + n)) * rate)).to(tl.float64)
        sums *= w * tl.load(law.scale + b * law.stride + n)
        if onehot & drawn & (plain == 0):  # the guess's chunk without the guess
            hit = (tl.load(rows.tokens + b * rows.drafts + n) // C).to(tl.int32)
            part = total(
                rows, law, draft, draft_law, stats, lists, state, b, n, w, onehot, 0, hit * C, C, N, G, GROUP, BLOCK
            )
            sums = tl.where(c == hit, part.to(tl.float64), sums)
    elif SUMMED & drawn & (onehot == 0) & (plain == 0):
        sums = tl.load(state.excess + row * E + c, mask=c < E, other=0.0).to(tl.float64)
    else:
        for k in range(E):
            part = total(
                rows,
                law,
                draft,
                draft_law,
                stats,
                lists,
                state,
                b,
                n,
                w,
                onehot,
                plain,
                k * UNIT,
                UNIT,
                N,
                G,
                GROUP,
                BLOCK,
            )
            sums = tl.where(c == k, part.to(tl.float64), sums)
    return sums, unit


@triton.jit
def settle(
    rows, law, draft, draft_law, stats, lists, state, b, low, N, S, E, G,
    C: tl.constexpr, GROUP: tl.constexpr, EP: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
    SUMMED: tl.constexpr,
):  # fmt: skip
    """Block verification's scan from the back: node n is taken with h = Z / (Z + 1 - w), Z the sum of its excess."""
    length = tl.load(state.length + b)
    u = uniform(state, b, 1, 0)
    beyond = 1.0 - tl.load(state.weight + b * N + length)  # probability to stop before the node at hand
    stop = low
    n = length - 1
    while n > low:
        w = tl.load(state.weight + b * N + n)
        sums, _unit = sums_of(
            rows, law, draft, draft_law, stats, lists, state, b, n, w.to(tl.float32), 0, N, S, E, G,
            C, GROUP, EP, UNIT, BLOCK, SUMMED,
        )  # fmt: skip
        z = tl.sum(sums, 0)
        beyond *= 1.0 - z / (z + 1.0 - w)
        taken = u >= beyond
        stop = tl.where(taken, n, stop)
        n = tl.where(taken, low, n - 1)
    return stop


@triton.jit
def pick(
    rows, law, draft, draft_law, stats, lists, state, b, stop, N, S, E, G,
    C: tl.constexpr, GROUP: tl.constexpr, EP: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
    SUMMED: tl.constexpr,
):  # fmt: skip
    """The token at which the cumulated excess of the stopping node first exceeds u times its total."""
    c = tl.arange(0, EP)
    w = tl.load(state.weight + b * N + stop).to(tl.float32)
    plain = stop * 0
    onehot = plain != 0
    if state.rule is not None:
        onehot = tl.load(state.rule + b) == 2
    sums, unit = sums_of(
        rows, law, draft, draft_law, stats, lists, state, b, stop, w, 0, N, S, E, G,
        C, GROUP, EP, UNIT, BLOCK, SUMMED,
    )  # fmt: skip
    if tl.sum(sums, 0) <= 0:  # probability zero but for rounding: p stands in, as in law.residual
        plain = stop * 0 + 1
        w = w * 0 + 1.0
        sums, unit = sums_of(
            rows, law, draft, draft_law, stats, lists, state, b, stop, w, plain, N, S, E, G,
            C, GROUP, EP, UNIT, BLOCK, SUMMED,
        )  # fmt: skip
    cumulated = tl.cumsum(sums, 0)
    threshold = uniform(state, b, state.lane, state.index) * tl.sum(sums, 0)
    last = tl.max(tl.where(sums > 0, c, 0), 0)
    chunk = tl.minimum(tl.sum((cumulated <= threshold).to(tl.int32), 0), last)
    running = tl.sum(tl.where(c < chunk, sums, 0.0), 0)
    start = tl.where(unit < 0, -1, chunk * unit)
    end = tl.where(unit < 0, listed(lists, b * N + stop), unit)
    token = tl.full((), 2147483647, tl.int32)
    final = tl.zeros((), tl.int32)
    for o in range(0, end, BLOCK):
        ids = place(lists, b * N + stop, start, o + tl.arange(0, BLOCK), end)
        part = rest(rows, law, draft, draft_law, stats, state, b, stop, w, onehot, plain, ids, N, G, GROUP).to(
            tl.float64
        )
        reached = (running + tl.cumsum(part, 0) > threshold) & (part > 0)
        token = tl.minimum(token, tl.min(tl.where(reached, ids, 2147483647), 0))
        final = tl.maximum(final, tl.max(tl.where(part > 0, ids, 0), 0))
        running += tl.sum(part, 0)
    return tl.minimum(token, final)
