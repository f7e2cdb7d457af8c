# mypy: ignore-errors
"""Plan the pick: hull and peel (draftproof.hull) over the bins of p/q, one program a sequence, in float64.

The terms are those of draftproof.hull, but every stretch of the order is given by its first and its last bin, and a
boundary by the bin that ends there. The bins need no sorting: each holds an interval of p/q, so the ratio of all it
holds lies between those of its neighbours, and the outermost bins are open to the outside alone. Rounding may put two
neighbours at their common edge in the wrong order; that moves the law of the pick by as much as p and q themselves are
rounded by. A bin without draft mass is a stretch of length zero and changes nothing.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from draftproof.kernels.lib.rows import element
from draftproof.verify import optimal_binned

BINS: tl.constexpr = tl.constexpr(optimal_binned.BINS)
MOVES: tl.constexpr = tl.constexpr(32)  # a chord needs a few; with so many, rounding makes points alternate for ever


class BinOrder(NamedTuple):
    """The bins in the order of p/q, as in draftproof.hull.HullPlan."""

    q: Any  # [BINS] the draft's law
    a: Any  # [BINS] the law of the pick
    L: Any  # [BINS] draft mass up to the end of each bin
    A: Any  # [BINS] mass of the pick up to the end of each bin
    C: Any  # [BINS] L to the power of the number of children
    count: Any  # how many children were drawn


@triton.jit(do_not_specialize=["K"])
def plan_pick(scratch, K, BLOCK_K: tl.constexpr):
    """The share of q that the pick's law has in each bin, and the chance of each child to be the pick."""
    b = tl.program_id(0).to(tl.int64)
    k, n = tl.arange(0, BINS), tl.arange(0, BLOCK_K)
    bins = tl.load(scratch.bin_ptr + b * K + n, mask=n < K, other=-1)
    count = tl.sum((bins >= 0).to(tl.int32), 0)
    held = tl.load(scratch.masses_ptr + (2 * b + 1) * BINS + bins, mask=bins >= 0, other=0)
    share, chosen = tl.zeros((BINS,), tl.float64), tl.zeros((BLOCK_K,), tl.float64)
    if count > 0:
        p = tl.load(scratch.masses_ptr + 2 * b * BINS + k).to(tl.float64)
        q = tl.load(scratch.masses_ptr + (2 * b + 1) * BINS + k).to(tl.float64)
        p, q = tl.where(q > 0, p, 0.0), q / tl.sum(q, 0)
        L = cumulated(q)
        first, last, a = hull(scratch, b, p, q, q * complete(count - 1, before(L), L, L * 0.0))
        share = tl.where(q > 0, a / tl.where(q > 0, q, 1.0), 0.0)
        order = BinOrder(q, a, L, cumulated(a), power(L, count), count)
        chosen = winner(order, first, last, tl.where(held > 0, bins, -1), K)
    tl.store(scratch.share_ptr + b * BINS + k, share)
    tl.store(scratch.chosen_ptr + b * K + n, chosen, mask=n < K)


@triton.jit
def hull(scratch, b, p, q, rise):
    """The edge of the first hull that each bin belongs to, as first and last bin, and the law `a` of the pick."""
    k = tl.arange(0, BINS)
    start, ends = b * BINS, b * (BINS + 1)
    tl.store(scratch.rise_ptr + start + k, rise)
    tl.store(scratch.run_ptr + start + k, p)
    tl.debug_barrier()
    pool(
        scratch.rise_ptr + start, scratch.run_ptr + start,
        scratch.edge_rise_ptr + ends, scratch.edge_run_ptr + ends, scratch.edge_first_ptr + ends,
    )  # fmt: skip
    first, last = tl.associative_scan((tl.load(scratch.edge_first_ptr + ends + k + 1), k), 0, wider, reverse=True)
    up, along = tl.load(scratch.edge_rise_ptr + ends + last + 1), tl.load(scratch.edge_run_ptr + ends + last + 1)
    # Bins without target mass form an edge of their own, shared by q: all that is left to tell them apart.
    bare = along <= 0
    whole = tl.sum(tl.where(bare, q, 0.0), 0)
    return first, last, up * tl.where(bare, q / tl.where(whole > 0, whole, 1.0), p / tl.where(bare, 1.0, along))


@triton.jit
def pool(rise_ptr, run_ptr, edge_rise_ptr, edge_run_ptr, edge_first_ptr):
    """Store at 1 + k the edge that ends with bin k as if no bin came after it: its rise, its run and its first bin.

    It is pooled with the edge before it as long as that is not steeper. Only positive numbers are ever added.
    """
    elder_rise, elder_run = tl.full((), float("inf"), tl.float64), tl.zeros((), tl.float64)  # steeper than any
    elder_first = tl.zeros((), tl.int32)
    tl.store(edge_rise_ptr, elder_rise)
    tl.store(edge_run_ptr, elder_run)
    end_rise_ptr, end_run_ptr, end_first_ptr = edge_rise_ptr + 1, edge_run_ptr + 1, edge_first_ptr + 1
    for k in range(BINS):
        up, along, first = tl.load(rise_ptr + k), tl.load(run_ptr + k), k
        while elder_rise * along <= up * elder_run:
            up, along, first = up + elder_rise, along + elder_run, elder_first
            elder_rise = tl.load(edge_rise_ptr + first)
            elder_run = tl.load(edge_run_ptr + first)
            elder_first = tl.load(edge_first_ptr + first)
        tl.store(end_rise_ptr + k, up)
        tl.store(end_run_ptr + k, along)
        tl.store(end_first_ptr + k, first)
        tl.debug_barrier()
        elder_rise, elder_run, elder_first = up, along, first


@triton.jit
def wider(first_a, last_a, first_b, last_b):
    """Of two edges the one that begins first, or else ends last: the other was pooled into it."""
    a = (first_a < first_b) | ((first_a == first_b) & (last_a > last_b))
    return tl.where(a, first_a, first_b), tl.where(a, last_a, last_b)


@triton.jit
def winner(order, first, last, bins, K):
    """[BLOCK_K]: the probability over u that each child is the pick: the first one in the class of the highest."""
    n = tl.arange(0, bins.shape[0])
    top = tl.max(bins, 0)
    i, j = element(first, top), element(last, top)
    chances, lowest = tl.zeros(bins.shape, tl.float64), tl.full((), 1.0, tl.float64)
    for child in range(K):  # the pick is this child for u from its own threshold up to the lowest one before it
        here = element(bins, child)
        if (here >= 0) & (lowest > 0):
            bound = tl.minimum(lowest, threshold(order, here, top, i, j))
            chances = tl.where(n == child, lowest - bound, chances)
            lowest = bound
    return chances


@triton.jit
def threshold(order, here, top, i, j):
    """The u from which on bins `here` <= `top` lie in one class; i and j are the edge of `top`."""
    k = tl.arange(0, BINS)
    between = (k >= here) & (k < top)
    u = tl.where(here == top, 0.0, 1.0).to(tl.float64)
    narrows = (here < top) & (here >= i)
    while narrows:
        cuts = tl.max(tl.where(between, cuts_until(order, i, j), 0.0), 0)
        u = tl.minimum(cuts, 1.0)
        left, right = chord(order.L, order.A - u * order.C, here, top, i, j)
        narrows = (left > i) | (right < j)
        i, j = left, right
    return u


@triton.jit
def cuts_until(order, i, j):
    """[BINS]: the u from which on the boundary after each bin from i to j - 1 is not below the chord over i to j."""
    k = tl.arange(0, BINS)
    inside = (k >= i) & (k <= j)
    q, a = tl.where(inside, order.q, 0.0), tl.where(inside, order.a, 0.0)
    left, right = tl.cumsum(q, 0), after(tl.cumsum(q, 0, reverse=True))
    above = a - q * (tl.sum(a, 0) / tl.sum(q, 0))
    # Both sums are the sag; the lighter side has less to lose to rounding when one bin outweighs all others.
    sag = tl.where(left < right, -tl.cumsum(above, 0), after(tl.cumsum(above, 0, reverse=True)))
    curve = left * right * complete(order.count - 2, element(order.L, i - 1), element(order.L, j), order.L)
    return sag / tl.where(curve > 0, curve, 1.0)  # masses so small that their powers vanish have no sag either


@triton.jit
def chord(L, curve, here, top, i, j):
    """The edge over `here` to `top` of the lower convex hull of (L, curve) between the ends of bins i to j.

    Start with the chord from end to end and move its ends to the lowest point under it on either side, until there is
    none. Points that rounding cannot tell from collinear might alternate for ever: then any of them will do.
    """
    k = tl.arange(0, BINS)
    start, starting = before(L), before(curve)
    left, right = (k >= i) & (k <= here), (k >= top) & (k <= j)
    moves = 0
    while moves < MOVES:
        width = element(L, j) - element(start, i)
        slope = (element(curve, j) - element(starting, i)) / tl.where(width > 0, width, 1.0)
        height, heights = starting - slope * start, curve - slope * L  # before a bin and after it
        low, lowest = tl.min(tl.where(left, height, float("inf")), 0, return_indices=True)
        deep, deepest = tl.min(tl.where(right, heights, float("inf")), 0, return_indices=True)
        i_moves, j_moves = (width > 0) & (low < element(height, i)), (width > 0) & (deep < element(heights, j))
        i, j = tl.where(i_moves, lowest, i), tl.where(j_moves, deepest, j)
        moves = tl.where(i_moves | j_moves, moves + 1, MOVES)
    return i, j


@triton.jit
def cumulated(law):
    """The running sums of a law, ending in 1 exactly: from the last bin that has any mass."""
    k = tl.arange(0, BINS)
    final = tl.max(tl.where(law > 0, k, 0), 0)
    return tl.where(k < final, tl.minimum(tl.cumsum(law, 0), 1.0), 1.0)


@triton.jit
def complete(degree, x, y, z):
    """Complete homogeneous polynomial: the sum of all monomials of that degree in x, y and z."""
    one, two, three = x * 0.0 + 1.0, y * 0.0 + 1.0, z * 0.0 + 1.0
    for _ in range(degree):
        one *= x
        two = two * y + one
        three = three * z + two
    return three


@triton.jit
def power(x, degree):
    """x to a whole power."""
    return complete(degree, x * 0.0, x * 0.0, x)


@triton.jit
def before(x):
    """Each entry's predecessor; 0 for the first."""
    k = tl.arange(0, x.shape[0])
    return tl.where(k > 0, tl.gather(x, tl.maximum(k - 1, 0), 0), 0.0)


@triton.jit
def after(x):
    """Each entry's successor; 0 for the last."""
    k = tl.arange(0, x.shape[0])
    end = x.shape[0] - 1
    return tl.where(k < end, tl.gather(x, tl.minimum(k + 1, end), 0), 0.0)
