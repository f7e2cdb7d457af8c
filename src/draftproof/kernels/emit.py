# mypy: ignore-errors
"""Second pass: the excess (w p - q)+ of the nodes that may be the last, unit by unit; then one token from it.

Rows that q does not touch (no draft, or a one-hot draft) take their sums from the first pass, and rows whose candidates
are listed need no more than the list. To emit, one program a sequence finds the unit in which the cumulated excess
crosses the uniform, and reads that unit alone once more.
"""

import triton
import triton.language as tl

from draftproof.kernels.device import plain, recall, score, shift_of, uniform, weigh

DRAWN: tl.constexpr = tl.constexpr(0)  # how a row's q is known: by the draft row,
GUESS: tl.constexpr = tl.constexpr(1)  # all of it on the guess,
NONE: tl.constexpr = tl.constexpr(2)  # or there is none


@triton.jit
def kind_of(draft, state, b, n):
    """How the q of row n is known."""
    kind = n * 0 + NONE
    if state.rule is not None:
        kind = tl.where(tl.load(state.facts + 8 * b + 5) == 2, GUESS, DRAWN if draft.logits is not None else NONE)
        kind = tl.where(n < tl.load(state.facts + 8 * b + 3), kind, NONE)
    return kind


@triton.jit
def listed(lists, row):
    """How many candidate tokens of a row are listed, -1 for none."""
    count = tl.full((), -1, tl.int32)
    if lists.count is not None:
        count = tl.load(lists.count + row, volatile=True)
    return count


@triton.jit
def rest(
    rows, law, draft, draft_law, stats, b, n, kind, ids, N, G, p_law, q_law, FULL: tl.constexpr, GROUP: tl.constexpr
):
    """(w p - q)+ of tokens `ids` in row n, whose laws are recalled. FULL: all ids are inside, and q is DRAWN."""
    inside = None if FULL else ids < rows.size
    if stats.group is not None:  # groups that are cut as a whole are not read
        best = tl.load(stats.group + (b * N + n) * G + ids // GROUP, mask=ids < rows.size, other=float("-inf"))
        inside = (best >= p_law[2]) & (ids < rows.size)
    s = score(rows, b, n, ids, inside)
    q = tl.zeros_like(s)
    if draft.logits is not None:
        if not FULL:
            inside = inside & (ids < tl.where(kind == 0, rows.size, 0))
        t = score(draft, b, tl.minimum(n, plain(rows.drafts) - 1), ids, inside)
        q = weigh(draft_law, t, ids, q_law[0], q_law[1], q_law[2], q_law[3], q_law[4], q_law[5])
    if not FULL:  # noqa: SIM102  (known when the kernel is compiled; the next when it runs)
        if kind == 1:
            q = (ids == tl.load(rows.tokens + b * plain(rows.drafts) + n)).to(tl.float32)
    p = weigh(law, s, ids, p_law[0], p_law[1], p_law[2], p_law[3], p_law[4], p_law[5])
    return tl.maximum(p - q, 0.0)


@triton.jit
def laws_of(rows, law, draft, draft_law, b, n, w):
    """What is known of the laws w p and q of row n."""
    shift, scale, cutoff, first, rate, greedy = recall(rows, law, b, n)
    p_law = shift, scale * w, cutoff, first, rate, greedy
    q_law = p_law
    if draft.logits is not None:
        q_law = recall(draft, draft_law, b, tl.minimum(n, plain(rows.drafts) - 1))
    return p_law, q_law


@triton.jit
def excess(
    rows, law, draft, draft_law, stats, lists, state, b, c, N, E, G,
    GROUP: tl.constexpr, UNIT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Unit c of the vocabulary: the excess of each node that may be the last and has no other sum."""
    low = tl.load(state.facts + 8 * b + 1)
    high = tl.load(state.facts + 8 * b + 2)
    for n in range(low, high + 1):
        kind = kind_of(draft, state, b, n)
        if (kind == 0) & (listed(lists, b * N + n) < 0):
            w = tl.load(state.weight + b * N + n).to(tl.float32)
            p_law, q_law = laws_of(rows, law, draft, draft_law, b, n, w)
            end = tl.minimum(c * (UNIT // TILE) + UNIT // TILE, tl.cdiv(rows.size, TILE))
            full = tl.minimum(end, rows.size // TILE)  # the last tile may be shorter
            part = tl.zeros((TILE,), tl.float32)
            for t in tl.range(c * (UNIT // TILE), full, num_stages=1 if UNIT == TILE else 3):
                ids = t * TILE + tl.arange(0, TILE)
                part += rest(rows, law, draft, draft_law, stats, b, n, kind, ids, N, G, p_law, q_law, True, GROUP)
            if full < end:
                ids = (end - 1) * TILE + tl.arange(0, TILE)
                part += rest(rows, law, draft, draft_law, stats, b, n, kind, ids, N, G, p_law, q_law, False, GROUP)
            tl.store(state.excess + (b * N + n) * E + c, tl.sum(part, 0))


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
    rows, law, draft, draft_law, stats, lists, b, n, kind, start, end, N, G, p_law, q_law,
    GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum of `rest` over the places below `end`."""
    part = tl.zeros((BLOCK,), tl.float32)
    for o in range(0, end, BLOCK):
        ids = place(lists, b * N + n, start, o + tl.arange(0, BLOCK), end)
        part += rest(rows, law, draft, draft_law, stats, b, n, kind, ids, N, G, p_law, q_law, False, GROUP)
    return tl.sum(part, 0)


@triton.jit
def sums_of(
    rows, law, draft, draft_law, stats, lists, state, b, n, kind, N, S, E, G, p_law, q_law,
    SPAN: tl.constexpr, GROUP: tl.constexpr, EP: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
    SUMMED: tl.constexpr,
):  # fmt: skip
    """[EP] excess of row n in float64, by units of the vocabulary; and the unit, -1 for a list, which counts as one."""
    c = tl.arange(0, EP)
    row = b * N + n
    count = listed(lists, row)
    whole = True
    if law.cutoff is not None:
        whole = p_law[2] == float("-inf")
    unit = tl.full((), UNIT, tl.int32)
    sums = tl.zeros((EP,), tl.float64)
    begin, end = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)  # places of `sums` that are summed here
    if count >= 0:
        unit = tl.full((), -1, tl.int32)
        end += 1
    elif whole & (kind != 0):  # the first pass has them
        unit = tl.full((), SPAN, tl.int32)
        peaks = tl.load(stats.peak + row * S + c, mask=c < S, other=float("-inf"), volatile=True)
        norms = tl.load(stats.norm + row * S + c, mask=c < S, other=0.0, volatile=True)
        sums = (norms * tl.exp2(shift_of(peaks, p_law[4]) - p_law[0])).to(tl.float64) * p_law[1]
        if kind == 1:  # but not the guess's span without the guess
            begin = (tl.load(rows.tokens + b * plain(rows.drafts) + n) // SPAN).to(tl.int32)
            end = begin + 1
    elif SUMMED & (kind == 0):
        sums = tl.load(state.excess + row * E + c, mask=c < E, other=0.0, volatile=True).to(tl.float64)
    else:
        end += E
    for k in range(begin, end):
        part = total(
            rows, law, draft, draft_law, stats, lists, b, n, kind, tl.where(unit < 0, -1, k * unit),
            tl.where(unit < 0, count, unit), N, G, p_law, q_law, GROUP, BLOCK,
        )  # fmt: skip
        sums = tl.where(c == k, part.to(tl.float64), sums)
    return sums, unit


@triton.jit
def settle(
    rows, law, draft, draft_law, stats, lists, state, b, stop, N, S, E, G,
    SPAN: tl.constexpr, GROUP: tl.constexpr, EP: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
    SUMMED: tl.constexpr,
):  # fmt: skip
    """The stopping node and the token after it, at which the cumulated excess first exceeds u times its total.

    While the node is open (stop < 0), block verification's scan goes on from the back: node n is taken with
    h = Z / (Z + 1 - w), Z the sum of its excess.
    """
    u = uniform(state, b, state.lane, plain(state.index))
    v, beyond = u, u * 0
    low = tl.load(state.facts + 8 * b + 1)
    n = stop
    if state.rule is not None:
        v = uniform(state, b, 1, 0)
        length = tl.load(state.facts + 8 * b + 3)
        beyond = 1.0 - tl.load(state.weight + b * N + length)  # probability to stop before the node at hand
        n = tl.where(stop < 0, length - 1, stop)
    w = u * 0 + 1.0
    kind = n * 0
    p_law, q_law = laws_of(rows, law, draft, draft_law, b, n, w.to(tl.float32))
    unit = n * 0
    sums = tl.zeros((EP,), tl.float64)
    looking = n >= 0
    bare = n < 0
    while looking:
        if state.rule is not None:
            w = tl.where(bare, w * 0 + 1.0, tl.load(state.weight + b * N + n))
        kind = tl.where(bare, NONE, kind_of(draft, state, b, n))
        p_law, q_law = laws_of(rows, law, draft, draft_law, b, n, w.to(tl.float32))
        sums, unit = sums_of(
            rows, law, draft, draft_law, stats, lists, state, b, n, kind, N, S, E, G, p_law, q_law,
            SPAN, GROUP, EP, UNIT, BLOCK, SUMMED,
        )  # fmt: skip
        z = tl.sum(sums, 0)
        if stop >= 0:  # probability zero but for rounding: p stands in, as in law.residual
            looking = (z <= 0) & (bare == 0)
            bare = z <= 0
        else:
            beyond *= 1.0 - z / (z + 1.0 - w)
            looking = v < beyond
            n = tl.where(looking, n - 1, n)
            stop = tl.where(looking & (n > low), -1, n)
    token = pick(
        rows, law, draft, draft_law, stats, lists, b, stop, kind, sums, unit, u, N, G, p_law, q_law, GROUP, BLOCK
    )
    return stop, token


@triton.jit
def pick(
    rows, law, draft, draft_law, stats, lists, b, n, kind, sums, unit, u, N, G, p_law, q_law,
    GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The token of row n at which the cumulated excess first exceeds u times its total; `sums` are those of units."""
    c = tl.arange(0, sums.shape[0])
    cumulated = tl.cumsum(sums, 0)
    threshold = u * tl.sum(sums, 0)
    last = tl.max(tl.where(sums > 0, c, 0), 0)
    chunk = tl.minimum(tl.sum((cumulated <= threshold).to(tl.int32), 0), last)
    running = tl.sum(tl.where(c < chunk, sums, 0.0), 0)
    start = tl.where(unit < 0, -1, chunk * unit)
    end = tl.where(unit < 0, listed(lists, b * N + n), unit)
    token = tl.full((), 2147483647, tl.int32)
    final = tl.zeros((), tl.int32)
    o = end * 0
    while (o < end) & (token == 2147483647):
        ids = place(lists, b * N + n, start, o + tl.arange(0, BLOCK), end)
        part = rest(rows, law, draft, draft_law, stats, b, n, kind, ids, N, G, p_law, q_law, False, GROUP)
        part = part.to(tl.float64)
        reached = (running + tl.cumsum(part, 0) > threshold) & (part > 0)
        token = tl.minimum(token, tl.min(tl.where(reached, ids, 2147483647), 0))
        final = tl.maximum(final, tl.max(tl.where(part > 0, ids, 0), 0))
        running += tl.sum(part, 0)
        o += BLOCK
    return tl.minimum(token, final)


@triton.jit
def emit(
    rows, law, draft, draft_law, stats, lists, state, out, b, N, S, E, G,
    SPAN: tl.constexpr, GROUP: tl.constexpr, NP: tl.constexpr, EP: tl.constexpr, UNIT: tl.constexpr,
    BLOCK: tl.constexpr, SUMMED: tl.constexpr,
):  # fmt: skip
    """The stopping node of sequence b if it is still open, the token after it, and the outcome."""
    stop = tl.load(state.facts + 8 * b)
    low = tl.load(state.facts + 8 * b + 1)
    high = tl.load(state.facts + 8 * b + 2)
    flags = tl.load(state.facts + 8 * b + 4)
    token = stop * 0
    if low <= high:
        stop, token = settle(
            rows, law, draft, draft_law, stats, lists, state, b, stop, N, S, E, G,
            SPAN, GROUP, EP, UNIT, BLOCK, SUMMED,
        )  # fmt: skip
    elif law.first is not None:
        token = tl.load(law.first + b * law.stride + stop)  # of a greedy row
    token = tl.where((flags & 1) != 0, 0, token)
    n = tl.arange(0, NP)
    x = tl.load(rows.tokens + b * plain(rows.drafts) + n, mask=n < stop, other=-1)
    tl.store(out[0] + b * N + n, tl.where(n == stop, token, x).to(tl.int64), mask=n < N)
    tl.store(out[1] + b, stop)
    tl.store(out[3] + b, flags)
    one = tl.zeros((1,), tl.int32)
    shift, scale, cutoff, first, rate, greedy = recall(rows, law, b, stop)
    s = score(rows, b, stop, token + one, one == 0)
    p = weigh(law, s, token + one, shift, scale, cutoff, first, rate, greedy)
    chance = tl.load(state.chance + b * N + n, mask=n < stop, other=1.0).to(tl.float32)
    chance = tl.where((n == stop) & ((flags & 1) == 0), tl.sum(p, 0), chance)
    tl.store(out[2] + b * N + n, tl.log(chance), mask=n < N)
