# mypy: ignore-errors
"""Second kernel: truncate rows exactly without sorting them, by top-k, top-p and min-p as draftproof.controls.

The outcome is a cutoff score and a first id. `measure` left the largest score of every group of GROUP tokens, that of
every BLOCK groups where few tokens are kept, and the groups' masses where many may be. They give a floor below which
the cutoff cannot be: for top-k the k-th largest of the blocks' scores, for top-p the highest score above which the
groups surely hold enough mass. Only groups that reach the floor are read again, mostly a few dozen, and their tokens
that reach it are listed as candidates. If these are few they are sorted, else searched (`search`). Equal scores are
treated as by the law: top-k keeps them all, top-p those with the larger ids.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from draftproof.kernels.chain.search import cut_ties, key, midpoint, search_cutoff, unkey
from draftproof.kernels.lib.codes import NO_TOKEN
from draftproof.kernels.lib.laws import lane_shift, rate_of, shift_of
from draftproof.kernels.lib.pdl import launch_dependents, wait
from draftproof.kernels.lib.rows import is_needed, load_scores


class LimitPtrs(NamedTuple):
    """Top-k, top-p and min-p of every sequence in memory."""

    top_k_ptr: Any  # [B]
    top_p_ptr: Any  # [B]
    min_p_ptr: Any  # [B]


class Limits(NamedTuple):
    """Top-k (0 for none), top-p (1 for none) and min-p (0 for none) of one sequence."""

    top_k: Any
    top_p: Any
    min_p: Any


class MeasuredRow(NamedTuple):
    """A row to be truncated: where it is, its largest score, and how its scores become weights."""

    row: Any  # b * N + n
    b: Any
    n: Any
    peak: Any
    shift: Any
    rate: Any


@triton.jit(do_not_specialize=["N", "spans"])
def truncate(
    rows, laws, stats, lists, limits, N, spans,
    GROUP: tl.constexpr, BLOCK: tl.constexpr, BLOCK_SPANS: tl.constexpr, BLOCK_BEST: tl.constexpr,
    FEW: tl.constexpr, SWEEP: tl.constexpr, SHIFT: tl.constexpr, GREEDY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The law of one row that was measured in spans."""
    launch_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    b = row // N
    n = (row % N).to(tl.int32)
    needed = is_needed(rows, b, n, False)
    limits = load_limits(rows, limits, b)
    rate, _ = rate_of(rows, b)
    wait(PDL)
    tl.store(lists.count_ptr + row, -1)
    if needed:
        c = tl.arange(0, BLOCK_SPANS)
        peaks = tl.load(stats.peak_ptr + row * spans + c, mask=c < spans, other=float("-inf"))
        peak = tl.max(peaks, 0)
        norm = tl.full((), 1.0, tl.float64)
        if stats.norm_ptr is None:
            peak = tl.where(tl.max((peaks != peaks).to(tl.int32), 0) > 0, float("nan"), peak)
        else:
            norms = tl.load(stats.norm_ptr + row * spans + c, mask=c < spans, other=0.0)
            norm = tl.sum((norms * tl.exp2(shift_of(peaks, rate) - shift_of(peak, rate))).to(tl.float64), 0)
        first = tl.zeros((), tl.int32)
        if GREEDY:
            firsts = tl.load(stats.first_ptr + row * spans + c, mask=c < spans, other=NO_TOKEN)
            first = tl.min(tl.where(peaks == peak, firsts, NO_TOKEN), 0)
        truncate_row(
            rows, laws, stats, lists, row, b, n, limits, peak, norm, first, GROUP, BLOCK, BLOCK_BEST, FEW, SWEEP, SHIFT
        )


@triton.jit
def load_limits(rows, limits, b):
    """Top-k, top-p and min-p of a sequence."""
    top_k = tl.minimum(tl.load(limits.top_k_ptr + b), rows.vocabulary)
    return Limits(top_k, tl.load(limits.top_p_ptr + b), tl.load(limits.min_p_ptr + b))


@triton.jit
def truncate_row(
    rows, laws, stats, lists, row, b, n, limits, peak, norm, first,
    GROUP: tl.constexpr, BLOCK: tl.constexpr, BLOCK_BEST: tl.constexpr,
    FEW: tl.constexpr, SWEEP: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Store the law of row n: from its largest score, the first id of that score, and the normaliser."""
    rate, greedy = rate_of(rows, b)
    shift = shift_of(peak, rate)
    cutoff = tl.full((), float("-inf"), tl.float32)
    first = tl.where(greedy, first, 0)
    if stats.norm_ptr is None:  # every row has a top-k, which makes a normaliser of its own
        norm = tl.where(tl.abs(peak) < float("inf"), 1.0, float("nan")).to(tl.float64)
    sound = (norm > 0) & (norm < float("inf"))
    if sound & (greedy == 0) & ((limits.top_k > 0) | (limits.top_p < 1) | (limits.min_p > 0)):
        measured = MeasuredRow(row, b, n, peak, shift, rate)
        cutoff, first, norm = find_cutoff(
            rows, stats, lists, measured, limits, norm, GROUP, BLOCK, BLOCK_BEST, FEW, SWEEP, SHIFT
        )
    i = b * laws.stride + n
    tl.store(laws.shift_ptr + i, shift)
    tl.store(laws.scale_ptr + i, tl.where(norm > 0, 1.0 / norm, norm - 1.0).to(tl.float32))
    tl.store(laws.cutoff_ptr + i, cutoff)
    tl.store(laws.first_ptr + i, first)


@triton.jit
def find_cutoff(
    rows, stats, lists, measured, limits, norm,
    GROUP: tl.constexpr, BLOCK: tl.constexpr, BLOCK_BEST: tl.constexpr,
    FEW: tl.constexpr, SWEEP: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Cutoff, first id and normaliser of one row under top-k, then top-p, then min-p."""
    i = tl.arange(0, BLOCK_BEST)
    blocks = lists.limit // BLOCK
    best = tl.load(stats.block_ptr + measured.row * blocks + i, mask=i < blocks, other=float("-inf")).to(tl.float32)
    top = key(measured.peak, SHIFT)
    lowest = key(tl.full((), float("-inf"), tl.float32), SHIFT)
    if limits.top_k > 0:
        floor = lowest
        if limits.top_k <= blocks:
            keys = key(best, SHIFT)
            floor = kth_key(keys, limits.top_k, tl.min(tl.where(i < blocks, keys, top), 0), top)
    else:  # the whole row's mass is known, and tokens that are too light to be kept need not be read
        floor = mass_floor(stats, measured, limits, best, norm, rows.vocabulary, i, blocks, top, GROUP, SHIFT)
    listed, count = list_candidates(
        rows, stats, lists, measured, best, blocks, unkey(floor, SHIFT), GROUP, BLOCK, SWEEP
    )
    if listed & (count <= FEW):
        cutoff, first, norm = sort_cutoff(lists, measured, limits, count, norm, FEW)
    else:
        cutoff, first, norm = search_cutoff(
            rows, lists, measured, limits, floor, listed, count, norm, SHIFT, FEW, GROUP
        )
    return cutoff, first, norm


@triton.jit
def mass_floor(
    stats, measured, limits, best, norm, vocabulary, i, blocks, top, GROUP: tl.constexpr, SHIFT: tl.constexpr
):  # fmt: skip
    """A key below which neither top-p nor min-p keeps a token."""
    heaviest = tl.exp2(tl.fma(measured.peak, measured.rate, -measured.shift))
    least = tl.where(limits.top_p < 1, (1.0 - limits.top_p) * norm / heaviest / vocabulary, 0.0)
    least = tl.maximum(least, limits.min_p).to(tl.float32)
    drop = tl.where(least > 0, tl.log2(tl.maximum(least, 1e-37)) - 0.01, float("-inf"))
    floor = key(measured.peak + drop / measured.rate, SHIFT)
    if stats.share_ptr is not None:  # noqa: SIM102  (known when the kernel is compiled; the next when it runs)
        if limits.top_p < 1:
            shares = tl.load(stats.share_ptr + measured.row * blocks + i, mask=i < blocks, other=0.0)
            shares *= tl.exp2(lane_shift(best, measured.rate) - measured.shift)
            weights = tl.exp2(tl.fma(best, measured.rate, -measured.shift))
            floor = top_p_floor(best, weights, shares, limits.top_p * norm, measured, floor, top, GROUP, SHIFT)
    return floor


@triton.jit
def kth_key(keys, k, floor, top):
    """A key that at least k keys reach, and few more do; `floor` is one that k reach."""
    high = top
    while floor < high:
        mid = midpoint(floor, high)
        reach = tl.sum((keys >= mid).to(tl.int32), 0)
        floor = tl.where(reach >= k, mid, floor)
        high = tl.where(reach >= k, tl.where(reach <= k + 8, floor, high), mid - 1)
    return floor


@triton.jit
def top_p_floor(best, weights, shares, need, measured, lowest, top, GROUP: tl.constexpr, SHIFT: tl.constexpr):
    """The highest key above which the groups surely hold the mass `need`, but at least `lowest`.

    Of a group that reaches the key at least its largest token counts, and all but GROUP - 1 tokens below the key.
    """
    keys = key(best, SHIFT)
    floor = lowest
    high = top
    while floor < high:
        mid = midpoint(floor, high)
        below = (GROUP - 1) * tl.exp2(tl.fma(unkey(mid, SHIFT), measured.rate, -measured.shift))
        held = tl.sum(tl.where(keys >= mid, tl.maximum(weights, shares - below), 0.0), 0)
        enough = held * 0.99999 >= need
        floor = tl.where(enough, mid, floor)
        high = tl.where(enough, high, mid - 1)
    return floor


@triton.jit
def list_candidates(
    rows, stats, lists, measured, best, blocks, floor,
    GROUP: tl.constexpr, BLOCK: tl.constexpr, SWEEP: tl.constexpr,
):  # fmt: skip
    """List the blocks that reach the floor, the groups in them, and the tokens in these.

    Whether all tokens fitted into the list, and how many there are; if not, how many tokens the groups have.
    """
    groups, ids = lists.groups_ptr + measured.row * lists.limit, lists.ids_ptr + measured.row * lists.capacity
    block_list = groups if BLOCK == 1 else ids  # the memory for ids is still free
    i = tl.arange(0, best.shape[0])
    live = (best >= floor) & (i < blocks)
    order = tl.cumsum(live.to(tl.int32), 0)
    tl.store(block_list + order - 1, i * (GROUP if BLOCK == 1 else BLOCK), mask=live)
    count = tl.sum(live.to(tl.int32), 0)
    tl.debug_barrier()
    if BLOCK > 1:
        best_ptr = stats.group_ptr + measured.row * lists.limit
        count = list_parts(
            rows, measured, block_list, count, floor, groups, lists.limit, lists.limit, BLOCK, GROUP, 64,
            best_ptr=best_ptr,
        )  # fmt: skip
        tl.debug_barrier()
    scores = lists.scores_ptr + measured.row * lists.capacity
    reached = list_parts(
        rows, measured, groups, count, floor, ids, lists.capacity, rows.vocabulary, GROUP, 1, SWEEP // GROUP,
        scores_ptr=scores,
    )  # fmt: skip
    tl.debug_barrier()
    listed = reached <= lists.capacity
    tl.store(lists.count_ptr + measured.row, tl.where(listed, reached, -1))
    return listed, tl.where(listed, reached, count * GROUP)


@triton.jit
def list_parts(
    rows, measured, starts_ptr, count, floor, out_ptr, capacity, end,
    WIDTH: tl.constexpr, UNIT: tl.constexpr, SWEEP: tl.constexpr, best_ptr=None, scores_ptr=None,
):  # fmt: skip
    """List the parts that reach the floor, of `count` wholes of WIDTH parts each, by where these start: how many.

    Parts are tokens, or groups of UNIT tokens with their best scores; a part is listed by its first token. Threads lie
    along a whole and hold the same part of several, as suits the stores: another layout would be converted for them.
    """
    reached = count * 0
    for o in range(0, count, SWEEP):
        i = o + tl.arange(0, SWEEP)
        start = tl.load(starts_ptr + i, mask=i < count, other=end)
        part = start[None, :] + tl.arange(0, WIDTH)[:, None]
        if best_ptr is None:
            s = load_scores(rows, measured.b, measured.n, part, part < end)
        else:
            s = tl.load(best_ptr + part, mask=part < end, other=float("-inf")).to(tl.float32)
        reach = ((s >= floor) & (s > float("-inf"))).to(tl.int32)
        each = tl.sum(reach, 0)
        place = (reached + tl.cumsum(each, 0) - each)[None, :] + tl.cumsum(reach, 0) - 1
        fits = (reach > 0) & (place < capacity)
        tl.store(out_ptr + place, part * UNIT, mask=fits)
        if scores_ptr is not None:
            tl.store(scores_ptr + place, s, mask=fits)
        reached += tl.sum(each, 0)
    return reached


@triton.jit
def sort_cutoff(lists, measured, limits, count, norm, FEW: tl.constexpr):
    """Cutoff, first id and normaliser of a row with few candidates, by sorting; the list is cut down to those kept."""
    k, top_p, min_p, peak, shift, rate = (
        limits.top_k, limits.top_p, limits.min_p, measured.peak, measured.shift, measured.rate,
    )  # fmt: skip
    start = measured.row * lists.capacity
    i = tl.arange(0, FEW)
    ids = tl.load(lists.ids_ptr + start + i, mask=i < count, other=NO_TOKEN)
    scores = tl.load(lists.scores_ptr + start + i, mask=i < count, other=float("-inf"))
    s = tl.sort(scores, descending=True)
    cutoff = tl.where(k > 0, tl.max(tl.where(i >= k - 1, s, float("-inf")), 0), float("-inf"))
    weights = tl.where(s >= cutoff, tl.exp2(tl.fma(s, rate, -shift)), 0.0).to(tl.float64)
    norm = tl.where(k > 0, tl.sum(weights, 0), norm)
    ties_cut = k * 0
    if top_p < 1:  # a score is kept while the scores above it hold less than the share
        kept = (tl.cumsum(weights, 0) - weights < top_p * norm) & (weights > 0)
        cutoff = tl.min(tl.where(kept, s, peak), 0)
        above = tl.sum(tl.where(s > cutoff, weights, 0.0), 0)
        ties_cut, norm = cut_ties(cutoff, above, tl.sum((s == cutoff).to(tl.int32), 0), shift, norm, rate, top_p)
    if min_p > 0:
        heavy = tl.exp2((s - peak) * rate) >= min_p
        level = tl.min(tl.where(heavy, s, peak), 0)
        if (level > cutoff) | ((top_p == 1) & (k == 0)):
            cutoff = level
            ties_cut = ties_cut * 0
            norm = tl.sum(tl.where(heavy, weights, 0.0), 0)
    equal = (scores == cutoff) & (i < count)
    last = equal & (tl.cumsum(equal.to(tl.int32), 0) > ties_cut)
    first = tl.where(ties_cut > 0, tl.min(tl.where(last, ids, NO_TOKEN), 0), 0)
    kept = ((scores > cutoff) | last).to(tl.int32)
    place = start + tl.cumsum(kept, 0) - 1
    tl.store(lists.ids_ptr + place, ids, mask=kept > 0)
    tl.store(lists.scores_ptr + place, scores, mask=kept > 0)
    tl.store(lists.count_ptr + measured.row, tl.sum(kept, 0))
    return cutoff, first, norm
