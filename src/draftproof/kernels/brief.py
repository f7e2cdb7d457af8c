# mypy: ignore-errors
"""Decision, excess and token of a sequence whose rows all have lists: so short that one program goes through them."""

import triton
import triton.language as tl

from draftproof.kernels.decide import guesses, misses, walk
from draftproof.kernels.device import next_may_begin, plain, recall, stopping, uniform, wait, weigh
from draftproof.kernels.emit import pick, settle, tell
from draftproof.kernels.residual import place, rest
from draftproof.kernels.scan import token_at


@triton.jit(do_not_specialize=["N"])
def brief(
    rows, law, draft, draft_law, lists, state, out, N,
    NP: tl.constexpr, WIDTH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The outcome of one sequence."""
    next_may_begin(EARLY)
    b = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, NP)
    u = uniform(state, b, state.lane, plain(state.index))
    rule, v = stopping(state, b)
    x, s, q, theirs, length, fault, _used = guesses(rows, draft, draft_law, rule, b, N, NP, False)
    wait(EARLY)
    ours = recall(rows, law, b, n, n < N)
    many = tl.load(lists.count + b * N + n, mask=n < N, other=0)
    p = tl.where(n < length, weigh(law, s, x, ours), 0.0)
    stop, low, high, weights = walk(n, v, p, q, length, rule)
    flags = fault + misses(n, ours, tl.maximum(stop, length - 1)).to(tl.int32)
    token = stop * 0
    if (flags & 1) > 0:
        stop = stop * 0
    elif ours[5]:
        token = tl.load(law.first + b * law.stride + stop)
    else:
        if stop < 0:
            there = (n > low) & (n <= high)
            every = beside(n, ours, theirs, weights, x, length, rule)
            each = add_lists(rows, law, draft, draft_law, lists, b, n, every, tl.where(there, many, 0), N, WIDTH)
            stop = settle(n, v, low, length, each.to(tl.float64), weights)
        row = row_at(n, stop, ours, theirs, weights, x, length, rule)
        count = tl.sum(tl.where(n == stop, many, 0), 0)
        end = tl.where(count < 0, rows.size, count)
        first = place(lists, b * N + stop, count, tl.arange(0, WIDTH), end)
        left = rest(rows, law, draft, draft_law, b, stop, row, first).to(tl.float64)
        total = tl.sum(left, 0)
        for o in range(WIDTH, end, WIDTH):
            ids = place(lists, b * N + stop, count, o + tl.arange(0, WIDTH), end)
            total += tl.sum(rest(rows, law, draft, draft_law, b, stop, row, ids).to(tl.float64), 0)
        if (end <= WIDTH) & (total > 0):
            found, last, _all = token_at(first, left, u * 0, u * total)
            token = tl.minimum(found, last)
        else:
            if total <= 0:
                row = row_at(n, stop, ours, theirs, weights * 0 + 1.0, x, stop, rule)  # as if no draft followed
            token = pick(rows, law, draft, draft_law, lists, b, stop, u, total, weights, row, count, N, False, WIDTH)
    tell(rows, law, out, b, stop, token, flags, recall(rows, law, b, stop, stop >= 0), p, N, NP)


@triton.jit
def row_at(n, k, ours, theirs, weights, x, length, rule):
    """Row k as `weighted` has it, from what is at hand of all rows: laws, weights and drafts [NP]."""
    here = n == k
    drawn = (k < length) & (rule != 2)
    hit = tl.where((k < length) & (rule == 2), tl.sum(tl.where(here, x, 0), 0), -1)
    shift, scale, cutoff, first, rate, greedy = ours
    mine = of(here, shift), of(here, scale * weights.to(tl.float32)), of(here, cutoff), of(here, first), rate, greedy
    shift, scale, cutoff, first, rate, greedy = theirs
    return mine, (of(here, shift), of(here, scale), of(here, cutoff), of(here, first), rate, greedy), drawn, hit


@triton.jit
def of(here, values):
    """The value [NP] at the one place that is `here`."""
    return tl.sum(tl.where(here, values, 0), 0)


@triton.jit
def beside(n, ours, theirs, weights, x, length, rule):
    """All rows [NP, 1] as `weighted` has one, beside tokens [NP, WIDTH]."""
    drawn = n < tl.where(rule == 2, 0, length)
    hit = tl.where((n < length) & (rule == 2), x, -1)
    shift, scale, cutoff, first, rate, greedy = ours
    scale *= weights.to(tl.float32)
    mine = shift[:, None], scale[:, None], cutoff[:, None], first[:, None], rate, greedy
    shift, scale, cutoff, first, rate, greedy = theirs
    return (
        mine, (shift[:, None], scale[:, None], cutoff[:, None], first[:, None], rate, greedy), drawn[:, None],
        hit[:, None],
    )  # fmt: skip


@triton.jit
def add_lists(rows, law, draft, draft_law, lists, b, n, every, many, N, WIDTH: tl.constexpr):
    """The excess [NP] of rows by their lists; of a row too flat for one, by the whole vocabulary."""
    n = tl.minimum(n, N - 1)[:, None]
    many = many[:, None]
    end = tl.where(many < 0, rows.size, many)
    left = tl.zeros((many.shape[0], WIDTH), tl.float32)
    for o in range(0, tl.max(end), WIDTH):
        ids = place(lists, b * N + n, many, o + tl.arange(0, WIDTH)[None, :], end)
        left += rest(rows, law, draft, draft_law, b, n, every, ids)
    return tl.sum(left, 1)
