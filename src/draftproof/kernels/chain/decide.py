# mypy: ignore-errors
"""How far a sequence's draft goes, from a few numbers of each row.

Token and one-hot rules are settled so. Block verification takes node i with h = Z / (Z + 1 - w), where Z is a sum over
the vocabulary; but h never exceeds w, the last node's h is w itself, and w = 1 ends the scan, so that the weights w
alone leave one node or a few: those between `low` and `high`. A few tokens of their rows may leave fewer (`narrow`).
"""

import triton
import triton.language as tl

from draftproof.kernels.chain.bounds import look, narrow
from draftproof.kernels.chain.residual import beside
from draftproof.kernels.chain.worklist import keep
from draftproof.kernels.lib.inverse_cdf import times
from draftproof.kernels.lib.rows import (
    LATE,
    known,
    next_may_begin,
    plain,
    recall,
    score,
    shift_of,
    slope,
    stopping,
    wait,
    weigh,
)


@triton.jit(do_not_specialize=["N", "S"])
def decide(
    rows, law, draft, draft_law, stats, state, N, S,
    NP: tl.constexpr, SP: tl.constexpr, C: tl.constexpr, SPACIOUS: tl.constexpr,
    GREEDY: tl.constexpr, LAZY: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One sequence. What does not need the rows' laws is read while the kernel before may still run."""
    next_may_begin(EARLY)
    b = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)  # the last rows first: they may still be in the cache
    n = tl.arange(0, NP)
    rule, v = stopping(state, b)
    x, s, q, theirs, length, fault, used = guesses(rows, draft, draft_law, rule, b, N, NP, LAZY)
    large, height, seen = x, s, s
    if stats.height is not None:
        large, height = look(draft_law, rule, b, N, NP, C)
    if known(tl.sum(tl.abs(q) + x, 0) + v + length + fault):
        wait(EARLY)
    if stats.height is not None:
        there = (b * N + n[:, None]) * C + tl.arange(0, C)[None, :]
        seen = tl.load(stats.height + there, mask=large >= 0, other=float("-inf"))
    if law.cutoff is None:
        ours = combine(rows, law, stats, b, N, S, used, NP, SP, GREEDY)
    else:
        ours = recall(rows, law, b, n, n < N)
    if state.facts is not None:
        p = tl.where(n < length, weigh(law, s, x, ours), 0.0)
        stop, low, high, weights = walk(n, v, p, q, length, rule)
        if stats.height is not None:  # noqa: SIM102  (known when the kernel is compiled; the next when it runs)
            if stop < 0:
                stop, low, high = narrow(n, v, law, draft_law, large, height, seen, ours, theirs, weights, low, high)
        lost = misses(n, ours, length - 1 if LAZY else tl.maximum(stop, length - 1))
        high = tl.where(lost | ours[5], low - 1, high)  # nothing to sum, nothing to draw
        at = low * 0
        if state.work is not None:
            if not SPACIOUS:  # noqa: SIM102  (known when the kernel is compiled; the next when it runs)
                if high > low:
                    at = tl.atomic_add(state.work, high - low, sem="relaxed")
            late = n == (length if LAZY else -1)
            drawn, hit = beside(n, x, length, rule)
            row = drawn, late, hit, weights, ours, theirs
            keep(state, law, draft_law, b, n, N, low, high, at, row, SPACIOUS)
        note(state, b, n, N, tl.where(lost, 0, stop), low, high, length, fault + lost.to(tl.int32), at, weights, p)


@triton.jit
def misses(n, numbers, last):
    """Whether a row up to the last that counts has no law."""
    return tl.sum(((n <= last) & ~(numbers[1] > 0)).to(tl.int32)) > 0


@triton.jit
def note(state, b, n, N, stop, low, high, length, flags, at, weights, p):
    """Write down what is known of sequence b."""
    facts = state.facts + 8 * b
    tl.store(facts, stop)
    tl.store(facts + 1, low)
    tl.store(facts + 2, high)
    tl.store(facts + 3, length)
    tl.store(facts + 4, flags)
    tl.store(facts + 5, at)
    if state.rule is not None:
        tl.store(state.chance + b * N + n, p, mask=n < N)
        tl.store(state.weight + b * N + n - low, weights, mask=(n >= low) & (n < N))


@triton.jit
def guesses(rows, draft, draft_law, rule, b, N, NP: tl.constexpr, LAZY: tl.constexpr):
    """Of each node: its draft's id, score, q and draft law; number of drafts, faults; and which rows were measured."""
    n = tl.arange(0, NP)
    start = rows.tokens + b * plain(rows.drafts) + plain(rows.node) + n
    x = tl.load(start, mask=n < N - 1, other=-1)
    used = x >= 0
    if not LAZY:
        used = (n == 0) | (tl.load(start - 1, mask=(n > 0) & (n < N), other=-1) >= 0)
    length = tl.min(tl.where((x >= 0) & (x < rows.size), NP, n))
    fault = tl.where(tl.sum(((x >= rows.size) & (n == length)).to(tl.int32)) > 0, 2, 0)
    x = tl.where(n < length, x, 0)
    s = score(rows, b, n, x, n < length)
    q = tl.full((NP,), 1.0, tl.float32)
    theirs = q, q, q, n, s, n < 0
    if draft.logits is not None:
        t = score(draft, b, n, x, n < length)
        shift, scale, cutoff, first, rate, greedy = recall(draft, draft_law, b, n, n < length)
        sound = scale > 0  # another row weighs nothing, or it would spoil what stands beside it
        theirs = tl.where(sound, shift, 0.0), tl.where(sound, scale, 0.0), cutoff, first, rate, greedy
        broken = tl.min(tl.where((n < length) & (rule != 2) & ~sound, n, length))
        fault += tl.where(broken < length, 4, 0)
        length = broken
        q = tl.where(rule == 2, q, weigh(draft_law, t, x, theirs))
    else:  # all rules but this one need the law of a draft
        fault += tl.where((length > 0) & (rule != 2), 4, 0)
        length = tl.where(rule == 2, length, 0)
    fault += tl.where(tl.sum(((n < length) & (q == 0)).to(tl.int32)) > 0, 8, 0)
    return x, s, q, theirs, length, fault, used


@triton.jit
def combine(rows, law, stats, b, N, S, used, NP: tl.constexpr, SP: tl.constexpr, GREEDY: tl.constexpr):
    """The laws of a sequence's rows from those of their spans, where nothing is truncated."""
    n = tl.arange(0, NP)
    c = tl.arange(0, SP)
    at = (b * N + n[:, None]) * S + c[None, :]
    there = used[:, None] & (c < S)[None, :]
    peaks = tl.load(stats.peak + at, mask=there, other=float("-inf"))
    norms = tl.load(stats.norm + at, mask=there, other=0.0)
    best = tl.max(peaks, 1)
    rate, greedy = slope(rows, b)
    shift = shift_of(best, rate)
    norm = tl.sum((norms * tl.exp2(shift_of(peaks, rate) - shift[:, None])).to(tl.float64), 1)
    scale = tl.where(norm > 0, 1.0 / norm, norm - 1.0).to(tl.float32)
    first = tl.zeros((NP,), tl.int32)
    if GREEDY:
        firsts = tl.load(stats.first + at, mask=there, other=LATE)
        first = tl.where(greedy, tl.min(tl.where(peaks == best[:, None], firsts, LATE), 1), 0)
    out = b * law.stride + n
    tl.store(law.shift + out, shift, mask=n < N)
    tl.store(law.scale + out, scale, mask=n < N)
    if law.first is not None:
        tl.store(law.first + out, first, mask=n < N)
    return shift, scale, shift, first, rate, greedy


@triton.jit
def walk(n, u, p, q, length, rule):
    """Along the chain: token acceptances, and block verification's weights w_{n+1} = min(1, w_n ratio_n).

    The last accepted node, -1 while it is open; the lowest and the highest that it can be; the weights [NP].
    """
    inside = n < length
    drawn = inside & (q > 0)
    ratio = tl.where(drawn, p.to(tl.float64) / tl.where(drawn, q, 1.0), 0.0)
    w, most, reach = tl.associative_scan(
        (ratio, tl.full(ratio.shape, 1.0, tl.float64), tl.minimum(ratio, 1.0)), 0, capped
    )
    w = tl.where(inside, tl.minimum(w, most), 0.0)  # of the node after n
    kept, sures = inside & (1.0 - reach <= u), tl.where(w == 1.0, n + 1, 0)
    stop, sure, final = tl.reduce((kept.to(tl.int32), sures, tl.where(n == length - 1, w, 0.0)), 0, tallied)
    after = inside & (n >= sure)
    below = tl.reduce(tl.where(after, 1.0 - w, 1.0), 0, times)  # not to be taken, of all nodes after the sure one
    end = tl.where(length > 0, 1.0 - final, 0.0)
    block = rule == 1
    unclear = block & (u < end) & (u >= below)
    found = tl.where(block, tl.where(u >= end, length, sure), stop)
    # each node's own weight stands one place further
    weights = tl.where((n == 0) | ~block, 1.0, tl.gather(w, tl.maximum(n - 1, 0), 0))
    return tl.where(unclear, -1, found), found, tl.where(unclear, length - 1, found), weights


@triton.jit
def capped(a, most, reach, b, cap, goes):
    """w -> min(b w, cap) after w -> min(a w, most), as one such step; and a product, in the same scan."""
    return tl.minimum(a * b, 1e300), tl.minimum(b * most, cap), reach * goes  # never infinite: inf * 0 is no number


@triton.jit
def tallied(count_a, high_a, sum_a, count_b, high_b, sum_b):
    """How many, the highest and the sum: one reduction for all."""
    return count_a + count_b, tl.maximum(high_a, high_b), sum_a + sum_b
