# mypy: ignore-errors
"""Last kernel: where each draft stops and the token after it.

One program a sequence finds the chunk of the vocabulary in which the cumulated excess crosses the uniform, and reads
that chunk alone once more; or it goes through the row's list.
"""

import triton
import triton.language as tl

from draftproof.kernels.device import LATE, plain, recall, score, uniform, wait, weigh
from draftproof.kernels.excess import listed, place, rest, row_of


@triton.jit(do_not_specialize=["N", "E"])
def emit(
    rows, law, draft, draft_law, lists, state, out, N, E,
    CHUNK: tl.constexpr, NP: tl.constexpr, EP: tl.constexpr, SHORT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The outcome of one sequence. SHORT: every row has a list, so short that nobody has summed its excess before."""
    b = tl.program_id(0).to(tl.int64)
    u = uniform(state, b, state.lane, plain(state.index))
    v = u
    if state.rule is not None:
        v = uniform(state, b, 1, 0)
    wait(EARLY)
    stop = tl.load(state.facts + 8 * b)
    low = tl.load(state.facts + 8 * b + 1)
    high = tl.load(state.facts + 8 * b + 2)
    flags = tl.load(state.facts + 8 * b + 4)
    token = stop * 0
    if low <= high:
        stop, total, sums = settle(rows, law, draft, draft_law, lists, state, b, v, stop, low, N, E, CHUNK, EP, SHORT)
        token = pick(rows, law, draft, draft_law, lists, state, b, stop, u, total, sums, N, CHUNK, SHORT)
    elif law.first is not None:
        token = tl.load(law.first + b * law.stride + stop)  # of a greedy row
    sound = (flags & 1) == 0
    token = tl.where(sound, token, 0)
    n = tl.arange(0, NP)
    x = tl.load(rows.tokens + b * plain(rows.drafts) + n, mask=n < stop, other=-1)
    tl.store(out[0] + b * N + n, tl.where(n == stop, token.to(tl.int64), x), mask=n < N)
    tl.store(out[1] + b, stop)
    tl.store(out[2] + b, flags)
    if out[3] is not None:
        one = tl.zeros((1,), tl.int32)
        s = score(rows, b, stop, token + one, one == 0)
        p = tl.sum(weigh(law, s, token + one, recall(rows, law, b, stop, stop >= 0)), 0)
        chance = tl.full((NP,), 1.0, tl.float32)
        if state.rule is not None:
            chance = tl.load(state.chance + b * N + n, mask=n < stop, other=1.0)
        tl.store(out[3] + b * N + n, tl.log(tl.where((n == stop) & sound, p, chance)), mask=n < N)


@triton.jit
def settle(
    rows, law, draft, draft_law, lists, state, b, v, stop, low, N, E,
    CHUNK: tl.constexpr, EP: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """The node at which the draft stops, the sum of its excess, and those of its chunks; a list has but one.

    While the node is open (stop < 0), block verification's scan goes on from the back: node n is taken with
    h = Z / (Z + 1 - w), Z the sum of its excess; `beyond` is the probability to stop before it.
    """
    c = tl.arange(0, EP)
    sums = tl.zeros((EP,), tl.float64)
    total, beyond = v * 0, v * 0
    n = stop
    if state.rule is not None:
        length = tl.load(state.facts + 8 * b + 3)
        beyond = 1.0 - tl.load(state.weight + b * N + length)
        n = tl.where(stop < 0, length - 1, stop)
    looking = n >= 0
    while looking:
        if SHORT:
            total = sum_of(rows, law, draft, draft_law, lists, state, b, n, N, CHUNK)
        else:
            there = c < tl.where(listed(lists, b * N + n) < 0, E, 1)
            sums = tl.load(state.sums + (b * N + n) * E + c, mask=there, other=0.0).to(tl.float64)
            total = tl.sum(sums, 0)
        looking = stop < 0
        if looking:
            beyond *= 1.0 - total / (total + 1.0 - tl.load(state.weight + b * N + n))
            looking = v < beyond
            n = tl.where(looking, n - 1, n)
            stop = tl.where(looking & (n > low), -1, n)
    return stop, total, sums


@triton.jit
def sum_of(rows, law, draft, draft_law, lists, state, b, n, N, CHUNK: tl.constexpr):
    """The excess of row n, by its list; of a row so flat that its list has no room, by the whole vocabulary."""
    row = row_of(rows, law, draft, draft_law, state, b, n, N, n < 0)
    many = listed(lists, b * N + n)
    end = tl.where(many < 0, rows.size, many)
    total = tl.zeros((), tl.float64)
    for o in range(0, end, CHUNK):
        ids = place(lists, b * N + n, many, o + tl.arange(0, CHUNK), end)
        total += tl.sum(rest(rows, law, draft, draft_law, b, n, row, ids, False), 0).to(tl.float64)
    return total


@triton.jit
def pick(rows, law, draft, draft_law, lists, state, b, n, u, total, sums, N, CHUNK: tl.constexpr, SHORT: tl.constexpr):
    """The token of row n at which the cumulated excess first exceeds u times its total."""
    bare = total <= 0  # probability zero but for rounding: p stands in, as in law.residual
    threshold = u * tl.where(bare, 1.0, total)
    row = row_of(rows, law, draft, draft_law, state, b, n, N, bare)
    many = listed(lists, b * N + n)
    o = n * 0
    end = tl.where(many < 0, rows.size, many)
    running = u * 0
    if (many < 0) & (bare == 0) & (SHORT == 0):  # else there are no sums that would help
        c = tl.arange(0, sums.shape[0])
        chunk = tl.sum((tl.cumsum(sums, 0) <= threshold).to(tl.int32), 0)
        chunk = tl.minimum(chunk, tl.max(tl.where(sums > 0, c, 0), 0))
        running = tl.sum(tl.where(c < chunk, sums, 0.0), 0)
        o = chunk * CHUNK
        end = tl.minimum(o + CHUNK, rows.size)
    token = o * 0 + LATE
    final = o * 0
    while (o < end) & (token == LATE):
        ids = place(lists, b * N + n, many, o + tl.arange(0, CHUNK), end)
        part = rest(rows, law, draft, draft_law, b, n, row, ids, False).to(tl.float64)
        reached = (running + tl.cumsum(part, 0) > threshold) & (part > 0)
        token = tl.minimum(token, tl.min(tl.where(reached, ids, LATE), 0))
        final = tl.maximum(final, tl.max(tl.where(part > 0, ids, 0), 0))
        running += tl.sum(part, 0)
        o += CHUNK
    return tl.minimum(token, final)
