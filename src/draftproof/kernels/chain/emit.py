# mypy: ignore-errors
"""Last kernel: where each draft stops and the token after it.

One program a sequence finds the chunk of the vocabulary in which the cumulated excess crosses the uniform, and reads
that chunk alone once more; or it goes through the row's list.
"""

import triton
import triton.language as tl

from draftproof.kernels.chain.residual import ids_of, listed, rest
from draftproof.kernels.chain.worklist import place_of, row_of, weighted
from draftproof.kernels.lib.inverse_cdf import chunk_at, token_at
from draftproof.kernels.lib.rows import (
    LATE,
    known,
    next_may_begin,
    plain,
    recall,
    score,
    stopping,
    uniform,
    wait,
    weigh,
)


@triton.jit(do_not_specialize=["N", "E", "Q"])
def emit(
    rows, law, draft, draft_law, lists, state, out, N, E, Q,
    CHUNK: tl.constexpr, NP: tl.constexpr, EP: tl.constexpr, QP: tl.constexpr,
    SPACIOUS: tl.constexpr, LAZY: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The outcome of one sequence. What may be needed is loaded before it is known whether it is."""
    next_may_begin(EARLY)
    b = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, NP)
    u = uniform(state, b, state.lane, plain(state.index))
    _rule, v = stopping(state, b)
    x = tl.load(rows.tokens + b * plain(rows.drafts) + n, mask=n < N - 1, other=-1)
    if known(tl.sum(x, 0) + u + v):
        wait(EARLY)
    stop = tl.load(state.facts + 8 * b)
    low = tl.load(state.facts + 8 * b + 1)
    high = tl.load(state.facts + 8 * b + 2)
    length = tl.load(state.facts + 8 * b + 3)
    flags = tl.load(state.facts + 8 * b + 4)
    c = tl.arange(0, EP)
    part = tl.arange(0, QP)
    row = row_of(state, law, draft_law, b)  # mostly there is one row, and this is it
    sums = tl.load(state.sums + b * E + c, mask=c < E, other=0.0)
    total = tl.sum(tl.load(state.totals + b * Q + part, mask=part < Q, other=0.0), 0).to(tl.float64)
    shifts = sums
    if LAZY:
        shifts = tl.load(state.shifts + b * E + c, mask=c < E, other=-1e30)
    if state.rule is not None:
        at, each, w = low * 0, n * u, n * u
        if SPACIOUS:
            each, w = candidates(state, b, n, at, N, N, Q, QP, SPACIOUS)
        if stop < 0:
            if not SPACIOUS:
                at = tl.load(state.facts + 8 * b + 5)
                each, w = candidates(state, b, n, at, high - low + 1, N, Q, QP, SPACIOUS)
            stop = low + settle(n, v, low * 0, length - low, each, w)
            if stop > low:
                place = place_of(stop - low, b, tl.num_programs(0), at, SPACIOUS).to(tl.int64)
                row = row_of(state, law, draft_law, place)
                sums = tl.load(state.sums + place * E + c, mask=c < E, other=0.0)
                total = tl.sum(tl.where(low + n == stop, each, 0.0), 0)
    token = stop * 0
    late = low > high  # whether the row was not measured; this is its law then
    shift, scale = tl.zeros((), tl.float32), tl.zeros((), tl.float32)
    sums = sums.to(tl.float64)
    if low <= high:
        many = listed(lists, b * N + stop)
        if LAZY:
            late = stop == length
            if late:
                shift, scale, sums = learn(shifts, sums)
                total = tl.sum(sums, 0)
        ours, theirs, drawn, hit = weighted(row, (total <= 0) | late)
        left = learnt(ours, late, shift, scale), theirs, drawn, hit
        token = pick(rows, law, draft, draft_law, lists, b, stop, u, total, sums, left, many, N, True, CHUNK)
        flags += tl.where(late & ~(total > 0), 1, 0)
    elif law.first is not None:
        token = tl.load(law.first + b * law.stride + stop)  # of a greedy row
    numbers = shift, scale, shift, stop, scale, late
    chance = tl.full((NP,), 1.0, tl.float32)
    if out[3] is not None:
        numbers = learnt(recall(rows, law, b, stop, stop >= 0), late, shift, scale)
        if state.rule is not None:
            chance = tl.load(state.chance + b * N + n, mask=n < N, other=1.0)
    tell(rows, law, out, b, x, stop, token, flags, numbers, chance, N, NP)


@triton.jit
def candidates(state, b, i, at, many, N, Q, QP: tl.constexpr, SPACIOUS: tl.constexpr):
    """Excess and weight of the rows of sequence b whose excess is wanted, `many` at most."""
    part = tl.arange(0, QP)[None, :]
    start = place_of(i, b, tl.num_programs(0), at, SPACIOUS)[:, None] * Q
    parts = tl.load(state.totals + start + part, mask=(i < many)[:, None] & (part < Q), other=0.0)
    return tl.sum(parts, 1).to(tl.float64), tl.load(state.weight + b * N + i, mask=i < N, other=0.0)


@triton.jit
def tell(rows, law, out, b, x, stop, token, flags, numbers, chance, N, NP: tl.constexpr):
    """Write down the outcome: the drafts before node `stop`, the token, and if wanted the logs of their p.

    `x` [NP] are the drafts, `chance` [NP] is p of each, `numbers` are those of the row that the token comes from.
    """
    n = tl.arange(0, NP)
    sound = (flags & 1) == 0
    token = tl.where(sound, token, 0)
    stop = tl.where(sound, stop, 0)
    x = tl.where(n < stop, x, -1)
    tl.store(out[0] + b * N + n, tl.where(n == stop, token.to(tl.int64), x), mask=n < N)
    tl.store(out[1] + b, stop)
    tl.store(out[2] + b, flags)
    if out[3] is not None:
        one = tl.zeros((1,), tl.int32)
        p = tl.sum(weigh(law, score(rows, b, stop, token + one, one == 0), token + one, numbers), 0)
        p = tl.where((n == stop) & sound, p, tl.where(n < stop, chance, 1.0))
        tl.store(out[3] + b * N + n, tl.log(p), mask=n < N)


@triton.jit
def settle(n, v, low, length, each, w):
    """The node at which block verification's scan from the back ends, not below `low`."""
    back = n.shape[0] - 1 - n
    taken = takes(back, v, low, length, tl.gather(each, back, 0), tl.gather(w, back, 0))
    return tl.max(tl.where(taken, back, low), 0)


@triton.jit
def takes(n, v, low, length, each, w):
    """Which of the nodes n [NP], from the last to the first, block verification takes if it comes to them above `low`.

    Node n is taken with h = Z / (Z + 1 - w), where Z, in `each` [NP], is the sum of its excess; `beyond` is the
    probability to stop before it.
    """
    asked = (n > low) & (n < length)
    refused = tl.where(asked, 1.0 - each / (each + 1.0 - w), tl.where(n == length, 1.0 - w, 1.0))
    beyond = tl.cumprod(refused, 0)
    return asked & (v >= beyond)


@triton.jit
def learn(shifts, sums):
    """Shift and scale of a row that was not measured, from the sums of its chunks; and these by that law."""
    shift = tl.max(shifts, 0)
    sums *= tl.exp2(shifts - shift)
    norm = tl.sum(sums, 0)
    scale = tl.where(norm > 0, 1.0 / norm, norm - 1.0)
    return shift, scale.to(tl.float32), sums * scale


@triton.jit
def learnt(numbers, late, shift, scale):
    """The numbers of `recall`, with these in place of its own if late."""
    old_shift, old_scale, cutoff, first, rate, greedy = numbers
    return tl.where(late, shift, old_shift), tl.where(late, scale, old_scale), cutoff, first, rate, greedy


@triton.jit
def pick(
    rows, law, draft, draft_law, lists, b, n, u, total, sums, row, many, N, SUMMED: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """The token of row n at which the cumulated excess first exceeds u times its total. SUMMED: by `sums` of chunks."""
    bare = total <= 0  # probability zero but for rounding: p stands in, as in law.residual
    threshold = u * tl.where(bare, 1.0, total)
    o = n * 0
    end = tl.where(many < 0, rows.size, many)
    running = u * 0
    if SUMMED:
        chunk, before = chunk_at(sums, threshold)
        helps = (many < 0) & ~bare
        o = tl.where(helps, chunk * CHUNK, 0)
        end = tl.where(helps, tl.minimum(o + CHUNK, rows.size), end)
        running = tl.where(helps, before, 0.0)
    token = o * 0 + LATE
    final = o * 0
    while (o < end) & (token == LATE):
        ids = ids_of(lists, b * N + n, many, o + tl.arange(0, CHUNK), end)
        part = rest(rows, law, draft, draft_law, b, n, row, ids).to(tl.float64)
        found, last, running = token_at(ids, part, running, threshold)
        token, final = tl.minimum(token, found), tl.maximum(final, last)
        o += CHUNK
    return tl.minimum(token, final)
