# mypy: ignore-errors
"""Decision, excess and token of a sequence whose rows all have lists: so short that one program goes through them."""

import triton
import triton.language as tl

from draftproof.kernels.chain.decide import guesses, misses, walk
from draftproof.kernels.chain.emit import pick, settle, takes, tell
from draftproof.kernels.chain.residual import beside, ids_of, rest
from draftproof.kernels.lib.rows import (
    LATE,
    at,
    edit,
    known,
    next_may_begin,
    plain,
    raw,
    recall,
    slope,
    stopping,
    uniform,
    wait,
    weigh,
)


@triton.jit(do_not_specialize=["N"])
def brief(
    rows, law, draft, draft_law, lists, state, out, N,
    NP: tl.constexpr, WIDTH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The outcome of one sequence. A token is drawn from every row while it is decided which of them counts."""
    next_may_begin(EARLY)
    b = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, NP)
    u = uniform(state, b, state.lane, plain(state.index))
    u = tl.minimum(u, 1.0 - 1e-12)  # or sums, rounded, may never exceed their share
    rule, v = stopping(state, b)
    rate, greedy = slope(rows, b)
    x, s, q, theirs, length, fault, _used = guesses(rows, draft, draft_law, rule, b, N, NP, False)
    from_row, hit = beside(n, x.to(tl.int32), length, rule)
    many, shift, scale, cutoff, first = n * 0, q * 0, q * 0, q * 0, n * 0
    ids = tl.full((WIDTH, NP), LATE, tl.int32)
    scores = tl.zeros((WIDTH, NP), tl.float32)
    # the loads too, or the compiler waits for the laws, to decide by, before it asks for the lists
    if known(tl.sum(tl.abs(q) + x, 0) + u + v + rate + length + fault):
        wait(EARLY)
        shift, scale, cutoff, first, _, _ = recall(rows, law, b, n, n < N)
        many = tl.load(lists.count + b * N + n, mask=n < N, other=0)
        ids, scores = look_up(lists, b, n, N, WIDTH)
    ids = tl.where(tl.arange(0, WIDTH)[:, None] < many[None, :], ids, LATE)
    drawn = ids < tl.where(from_row, rows.size, 0)[None, :]
    logits = None if draft.logits is None else raw(draft, b, n[None, :], ids, drawn)
    ours = shift, scale, cutoff, first, rate, greedy
    p = tl.where(n < length, weigh(law, s, x, ours), 0.0)
    stop, low, high, weights = walk(n, v, p, q, length, rule)
    flags = fault + misses(n, ours, tl.maximum(stop, length - 1)).to(tl.int32)
    last, token = low, at(first, low)
    if ((flags & 1) == 0) & (greedy == 0):
        each, tokens = draw(draft, draft_law, b, n, ids, scores, logits, drawn, ours, theirs, weights, hit, u)
        back = NP - 1 - n  # from the last node to the first
        taken = back == low
        if stop < 0:
            taken |= takes(back, v, low, length, tl.gather(each, back, 0), tl.gather(weights, back, 0))
        last, token = tl.reduce((tl.where(taken, back, -1), tl.gather(tokens, back, 0)), 0, later)
        short = tl.max(tl.where(n <= length, many, 0).to(tl.uint32), 0) <= WIDTH  # -1, for no list, is the largest
        if (token == LATE) | (short == 0):
            last, token = draw_long(
                rows, law, draft, draft_law, lists, b, n, u, v, stop, low, high, ours, theirs, weights, x, many,
                length, rule, N, WIDTH,
            )  # fmt: skip
    tell(rows, law, out, b, x, last, token, flags, recall(rows, law, b, last, last >= 0), p, N, NP)


@triton.jit
def look_up(lists, b, n, N, WIDTH: tl.constexpr):
    """The first tokens [WIDTH, NP] of all lists and their scores, before it is known how long the lists are.

    Tokens come first, as that is the order in which the compiler lays threads along addresses that it knows nothing of:
    so all stays in the threads that have read it.
    """
    n = n[None, :]
    i = tl.arange(0, WIDTH)[:, None]
    at = (b * N + n) * lists.room + i
    there = (n < N) & (i < lists.room)
    return tl.load(lists.ids + at, mask=there, other=LATE), tl.load(lists.scores + at, mask=there, other=0.0)


@triton.jit
def draw(draft, draft_law, b, n, ids, scores, logits, drawn, ours, theirs, weights, hit, u):
    """Of every row the sum of the excess (w p - q)+ of its tokens, and the token at which it exceeds u times that sum;
    LATE for none. `scores` are the target's, `logits` the drafter's.

    So short a list holds the tokens that stay and no others.
    """
    shift, scale, _cutoff, _first, rate, _greedy = across(ours)
    left = tl.exp2(tl.fma(scores, rate, -shift)) * scale * weights.to(tl.float32)[None, :]
    if draft.logits is not None:
        t = edit(draft, logits, b, n[None, :], ids, drawn)
        left -= tl.where(drawn, weigh(draft_law, t, ids, across(theirs)), 0.0)
    left = tl.where((ids == LATE) | (ids == hit[None, :]), 0.0, tl.maximum(left, 0.0)).to(tl.float64)
    each = tl.sum(left, 0)
    reached = (tl.cumsum(left, 0) > (u * each)[None, :]) & (left > 0)
    return each, tl.min(tl.where(reached, ids, LATE), 0)


@triton.jit
def later(n_a, a, n_b, b):
    """The later node and what is there: one reduction for both."""
    return tl.maximum(n_a, n_b), tl.where(n_a > n_b, a, b)


@triton.jit
def across(numbers):
    """Numbers of `recall` for rows [NP], to stand above their tokens [WIDTH, NP]."""
    shift, scale, cutoff, first, rate, greedy = numbers
    return shift[None, :], scale[None, :], cutoff[None, :], first[None, :], rate, greedy


@triton.jit
def draw_long(
    rows, law, draft, draft_law, lists, b, n, u, v, stop, low, high, ours, theirs, weights, x, many, length, rule, N,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """The last node and the token after it where lists are long or missing, or where rounding has left nothing."""
    if stop < 0:
        there = (n > low) & (n <= high)
        shift, scale, cutoff, first, rate, greedy = ours
        mine = across((shift, scale * weights.to(tl.float32), cutoff, first, rate, greedy))
        drawn, hit = beside(n, x, length, rule)
        every = mine, across(theirs), drawn[None, :], hit[None, :]
        each = add_lists(rows, law, draft, draft_law, lists, b, n, every, tl.where(there, many, 0), N, WIDTH)
        stop = settle(n, v, low, length, each.to(tl.float64), weights)
    row = row_at(stop, ours, theirs, weights, x, length, rule)
    count = at(many, stop)
    end = tl.where(count < 0, rows.size, count)
    total = u * 0
    for o in range(0, end, WIDTH):
        ids = ids_of(lists, b * N + stop, count, o + tl.arange(0, WIDTH), end)
        total += tl.sum(rest(rows, law, draft, draft_law, b, stop, row, ids).to(tl.float64), 0)
    if total <= 0:
        row = row_at(stop, ours, theirs, weights * 0 + 1.0, x, stop, rule)  # as if no draft followed
    return stop, pick(rows, law, draft, draft_law, lists, b, stop, u, total, weights, row, count, N, False, WIDTH)


@triton.jit
def row_at(k, ours, theirs, weights, x, length, rule):
    """Row k as `weighted` has it, from what is at hand of all rows: laws, weights and drafts [NP]."""
    drawn, hit = beside(k, at(x, k), length, rule)
    shift, scale, cutoff, first, rate, greedy = ours
    mine = at(shift, k), at(scale * weights.to(tl.float32), k), at(cutoff, k), at(first, k), rate, greedy
    shift, scale, cutoff, first, rate, greedy = theirs
    return mine, (at(shift, k), at(scale, k), at(cutoff, k), at(first, k), rate, greedy), drawn, hit


@triton.jit
def add_lists(rows, law, draft, draft_law, lists, b, n, every, many, N, WIDTH: tl.constexpr):
    """The excess [NP] of rows by their lists; of a row too flat for one, by the whole vocabulary."""
    n = tl.minimum(n, N - 1)[None, :]
    many = many[None, :]
    end = tl.where(many < 0, rows.size, many)
    left = tl.zeros((WIDTH, many.shape[1]), tl.float32)
    for o in range(0, tl.max(end), WIDTH):
        ids = ids_of(lists, b * N + n, many, o + tl.arange(0, WIDTH)[:, None], end)
        left += rest(rows, law, draft, draft_law, b, n, every, ids)
    return tl.sum(left, 0)
