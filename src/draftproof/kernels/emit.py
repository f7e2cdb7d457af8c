# mypy: ignore-errors
"""Last kernel: where each draft stops and the token after it.

One program a sequence finds the chunk of the vocabulary in which the cumulated excess crosses the uniform, and reads
that chunk alone once more; or it goes through the row's list.
"""

import triton
import triton.language as tl

from draftproof.kernels.device import LATE, plain, recall, score, uniform, wait, weigh
from draftproof.kernels.residual import listed, place, rest, row_of


@triton.jit(do_not_specialize=["N", "E", "Q"])
def emit(
    rows, law, draft, draft_law, lists, state, out, N, E, Q,
    CHUNK: tl.constexpr, NP: tl.constexpr, EP: tl.constexpr, QP: tl.constexpr,
    SHORT: tl.constexpr, WIDTH: tl.constexpr, LAZY: tl.constexpr, EARLY: tl.constexpr,
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
    late = low > high  # whether the row was not measured; this is its law then
    shift, scale = tl.zeros((), tl.float32), tl.zeros((), tl.float32)
    if low <= high:
        i, sums = tl.arange(0, NP), tl.zeros((EP,), tl.float64)
        if SHORT:
            each = by_list(rows, law, draft, draft_law, lists, state, b, low, high, N, WIDTH, NP)
            if stop < 0:
                stop = settle(state, b, v, low, each, N, NP)
            total = tl.sum(tl.where(i == stop, each, 0.0), 0)
        else:
            if stop < 0:
                part = tl.arange(0, QP)[None, :]
                there = ((i >= low) & (i <= high))[:, None] & (part < Q)
                parts = tl.load(state.totals + (b * N + i[:, None]) * Q + part, mask=there, other=0.0)
                stop = settle(state, b, v, low, tl.sum(parts, 1).to(tl.float64), N, NP)
            c = tl.arange(0, EP)
            there = c < tl.where(listed(lists, b * N + stop) < 0, E, 1)
            sums = tl.load(state.sums + (b * N + stop) * E + c, mask=there, other=0.0).to(tl.float64)
            if LAZY:
                late = stop == tl.load(state.facts + 8 * b + 3)
                if late:
                    shift, scale, sums = learn(state, b, sums, E)
            total = tl.sum(sums, 0)
        row = row_of(rows, law, draft, draft_law, state, b, stop, N, (total <= 0) | late)
        row = known(row[0], late, shift, scale), row[1], row[2], row[3]
        token = pick(rows, law, draft, draft_law, lists, b, stop, u, total, sums, row, N, CHUNK, SHORT)
        flags += tl.where(late & ~(total > 0), 1, 0)
    elif law.first is not None:
        token = tl.load(law.first + b * law.stride + stop)  # of a greedy row
    sound = (flags & 1) == 0
    token = tl.where(sound, token, 0)
    stop = tl.where(sound, stop, 0)
    n = tl.arange(0, NP)
    x = tl.load(rows.tokens + b * plain(rows.drafts) + n, mask=n < stop, other=-1)
    tl.store(out[0] + b * N + n, tl.where(n == stop, token.to(tl.int64), x), mask=n < N)
    tl.store(out[1] + b, stop)
    tl.store(out[2] + b, flags)
    if out[3] is not None:
        one = tl.zeros((1,), tl.int32)
        s = score(rows, b, stop, token + one, one == 0)
        numbers = known(recall(rows, law, b, stop, stop >= 0), late, shift, scale)
        p = tl.sum(weigh(law, s, token + one, numbers), 0)
        chance = tl.full((NP,), 1.0, tl.float32)
        if state.rule is not None:
            chance = tl.load(state.chance + b * N + n, mask=n < stop, other=1.0)
        tl.store(out[3] + b * N + n, tl.log(tl.where((n == stop) & sound, p, chance)), mask=n < N)


@triton.jit
def settle(state, b, v, low, each, N, NP: tl.constexpr):
    """The node at which block verification's scan from the back ends, not below `low`.

    Node i is taken with h = Z / (Z + 1 - w), where Z, in `each` [NP], is the sum of its excess; `beyond` is the
    probability to stop before it.
    """
    n = tl.arange(0, NP)
    length = tl.load(state.facts + 8 * b + 3)
    w = tl.load(state.weight + b * N + n, mask=n <= length, other=0.0)
    asked = (n > low) & (n < length)
    refused = tl.where(asked, 1.0 - each / (each + 1.0 - w), tl.where(n == length, 1.0 - w, 1.0))
    beyond = tl.cumprod(refused, 0, reverse=True)
    return tl.max(tl.where(asked & (v >= beyond), n, low), 0)


@triton.jit
def learn(state, b, sums, E):
    """Shift and scale of a row that was not measured, from the sums of its chunks; and these by that law."""
    c = tl.arange(0, sums.shape[0])
    shifts = tl.load(state.shifts + b * E + c, mask=c < E, other=-1e30)
    shift = tl.max(shifts, 0)
    sums *= tl.exp2(shifts - shift)
    norm = tl.sum(sums, 0)
    scale = tl.where(norm > 0, 1.0 / norm, norm - 1.0)
    return shift, scale.to(tl.float32), sums * scale


@triton.jit
def known(numbers, late, shift, scale):
    """The numbers of `recall`, with these in place of its own if late."""
    old_shift, old_scale, cutoff, first, rate, greedy = numbers
    return tl.where(late, shift, old_shift), tl.where(late, scale, old_scale), cutoff, first, rate, greedy


@triton.jit
def by_list(rows, law, draft, draft_law, lists, state, b, low, high, N, WIDTH: tl.constexpr, NP: tl.constexpr):
    """The excess [NP] of rows low to high by their lists; of a row too flat for a list, by the whole vocabulary."""
    i = tl.arange(0, NP)[:, None]
    n = tl.minimum(i, N - 1)
    row = row_of(rows, law, draft, draft_law, state, b, n, N, high < low)
    many = tl.load(lists.count + b * N + n, mask=(i >= low) & (i <= high), other=0)
    end = tl.where(many < 0, rows.size, many)
    total = tl.zeros((NP,), tl.float64)
    for o in range(0, tl.max(end), WIDTH):
        ids = place(lists, b * N + n, many, o + tl.arange(0, WIDTH)[None, :], end)
        total += tl.sum(rest(rows, law, draft, draft_law, b, n, row, ids), 1)
    return total


@triton.jit
def pick(rows, law, draft, draft_law, lists, b, n, u, total, sums, row, N, CHUNK: tl.constexpr, SHORT: tl.constexpr):
    """The token of row n at which the cumulated excess first exceeds u times its total."""
    bare = total <= 0  # probability zero but for rounding: p stands in, as in law.residual
    threshold = u * tl.where(bare, 1.0, total)
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
        part = rest(rows, law, draft, draft_law, b, n, row, ids).to(tl.float64)
        reached = (running + tl.cumsum(part, 0) > threshold) & (part > 0)
        token = tl.minimum(token, tl.min(tl.where(reached, ids, LATE), 0))
        final = tl.maximum(final, tl.max(tl.where(part > 0, ids, 0), 0))
        running += tl.sum(part, 0)
        o += CHUNK
    return tl.minimum(token, final)
