"""Hull and peel: pick one of K i.i.d. drafts so that the pick's law is as close to p as any can be (bound: 2502.18779).

Sort the draft's support by p/q and let L be the draft mass below each boundary. Cut that order into classes; of the
best class that holds a draft take the first draft. A class from L to L' is taken with probability L'^K - L^K, shared
inside in proportion to q. It remains to choose the cuts, at random.

Hull: the best law `a` of the pick is read off the upper concave hull of the points (p mass, L^K); on each edge it is a
multiple of p. Peel: with A the cumulated a, the cuts for a uniform u are the vertices of the lower convex hull of the
points (L, A - u L^K). They only become fewer as u grows, from every boundary down to the vertices of the first hull,
and the mean over u of the classes' laws is `a`. So only the boundaries that a question asks for are ever looked at.

Rows are NumPy arrays of floats or of Fractions; with Fractions every number is exact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from draftproof.law import divide

Row = Any  # NumPy array of float64 or of Fractions


class HullPlan(NamedTuple):
    """How to pick one of K i.i.d. drafts. Places 1..m number the order; boundary k lies between places k and k + 1."""

    siblings: int  # K
    place: Row  # [V] place of each token, 0 outside the draft's support
    order: Row  # [m] tokens with q > 0, p/q ascending
    q: Row  # [m] draft law along the order
    a: Row  # [m] law of the pick along the order
    L: Row  # [m + 1] draft mass below each boundary
    A: Row  # [m + 1] mass of the pick below each boundary
    C: Row  # [m + 1] L^K
    vertices: Row  # boundaries on the first hull, 0 and m among them: they cut for every u

    @property
    def law(self) -> Row:
        """[V] law of the picked token."""
        law = np.zeros(self.place.shape, dtype=self.a.dtype)
        law[self.order] = self.a
        return law


def plan(p: Row, q: Row, siblings: int) -> HullPlan:
    """Plan for one row: p [V] target's law, q [V] draft's law (somewhere positive), K siblings drawn i.i.d. from q."""
    support = np.nonzero(q > 0)[0]
    order = support[np.argsort(p[support] / q[support], kind="stable")]
    place = np.zeros(q.shape, dtype=np.int64)
    place[order] = np.arange(1, len(order) + 1)
    p, q = p[order], q[order] / q[order].sum()
    L = _cumulated(q)
    vertices, a = _hull(p, q, q * _complete(siblings - 1, L[:-1], L[1:]))
    return HullPlan(siblings, place, order, q, a, L, _cumulated(a), L**siblings, vertices)


def winner(plan: HullPlan, tokens: Row) -> list[Any]:
    """Probability over u that each of the drafts [K] is the pick: the first one in the class of the highest."""
    places = [int(place) for place in plan.place[tokens]]
    top = max(places)
    chances, lowest = [], plan.L[-1]
    for place in places:  # the pick is this draft for u from its own threshold up to the lowest one before it
        bound = min(lowest, threshold(plan, place, top)) if lowest > 0 else lowest
        chances.append(lowest - bound)
        lowest = bound
    return chances


def threshold(plan: HullPlan, place: int, top: int) -> Any:
    """The u from which on `place` <= `top` lie in one class: the largest u at which a boundary between them cuts.

    Between cuts i and j boundary k cuts for u below the ratio of two sags under the chord from i to j, that of A and
    that of L^K. The largest ratio is too large while (i, j) is too wide, so it narrows (i, j) until it fits.
    """
    i, j = _edge(plan, top)
    if place == top or place <= i:
        return plan.L[0] if place == top else plan.L[-1]
    while True:
        u = min(_cuts_until(plan, i, j)[place - 1 - i : top - 1 - i].max(), plan.L[-1])
        narrower = _chord(plan, place, top, u, i, j)
        if narrower == (i, j):
            return u
        i, j = narrower


def segment(plan: HullPlan, place: int, u: Any) -> tuple[int, int]:
    """(i, j): the class of a place for this u holds places i + 1 .. j, draft mass L[i] to L[j]."""
    return _chord(plan, place, place, u, *_edge(plan, place))


def exchanged(p: Row, a: Row, fixed: list[int]) -> tuple[Any, Row]:
    """(scale, law [V]) of a pick with law `a`, kept with min(1, scale p / a), else exchanged for a fixed token by p.

    The fixed tokens T are guesses for certain, and a is zero on them. The scale makes the exchanged mass scale p(T), so
    the law is min(a, scale p) outside T and scale p on it: the scale is the largest a(S) / (p(T) + p(S)) over sets S of
    tokens, and the best S is a prefix in ascending order of p/a. If p(T) is 0 nothing is gained by an exchange.
    """
    sure = p[fixed].sum()
    if not sure > 0:
        return sure * 0 + 1, a
    order = np.nonzero(a > 0)[0]
    order = order[np.argsort(p[order] / a[order], kind="stable")]
    scale = (np.cumsum(a[order]) / (sure + np.cumsum(p[order]))).max()
    law = np.where(scale * p < a, scale * p, a)
    law[fixed] = (a - law).sum() * p[fixed] / sure  # mass really exchanged: no rounded scale in it
    return scale, law


def _edge(plan: HullPlan, place: int) -> tuple[int, int]:
    """The first hull's edge (i, j) with i < place <= j."""
    n = int(np.searchsorted(plan.vertices, place))
    return int(plan.vertices[n - 1]), int(plan.vertices[n])


def _cuts_until(plan: HullPlan, i: int, j: int) -> Row:
    """[j - i - 1]: for each boundary between cuts i and j, the u from which on it is not below their chord."""
    q, a, L = plan.q[i:j], plan.a[i:j], plan.L
    left, right = np.cumsum(q)[:-1], np.cumsum(q[::-1])[-2::-1]
    above = a - q * (a.sum() / q.sum())
    # Both sums are the sag; the lighter side has less to lose to rounding when one token outweighs all others.
    sag = np.where(left < right, -np.cumsum(above)[:-1], np.cumsum(above[::-1])[-2::-1])
    curve = left * right * _complete(plan.siblings - 2, L[i], L[j], L[i + 1 : j])
    return sag / np.where(curve > 0, curve, 1)  # masses so small that their powers vanish have no sag either


def _chord(plan: HullPlan, place: int, top: int, u: Any, i: int, j: int) -> tuple[int, int]:
    """The edge over `place` to `top` of the lower convex hull of (L, A - u L^K) between boundaries i and j.

    Start with the chord from i to j and move its ends to the lowest point under it on either side, until there is none.
    Points that rounding makes collinear could alternate for ever; then either of them will do.
    """
    first, L = i, plan.L[i : j + 1]
    curve = plan.A[i : j + 1] - u * plan.C[i : j + 1]
    i, j, place, top = 0, j - first, place - first, top - first
    seen = set()
    while (i, j) not in seen and L[j] > L[i]:
        seen.add((i, j))
        height = curve - (curve[j] - curve[i]) / (L[j] - L[i]) * L
        left, right = int(np.argmin(height[:place])), top + int(np.argmin(height[top:]))
        i, j = left if height[left] < height[i] else i, right if height[right] < height[j] else j
    return first + i, first + j


def _hull(p: Row, q: Row, rise: Row) -> tuple[Row, Row]:
    """Vertices of the upper concave hull of (cumulated p, cumulated rise), and its rise `a` shared by p on each edge.

    Edges of no smaller slope than the one before are pooled with it. Only positive numbers are ever added.
    """
    edges: list[tuple[Any, Any, int]] = []  # rise, run, last boundary
    for k, (up, along) in enumerate(zip(rise.tolist(), p.tolist(), strict=True), start=1):
        while edges and edges[-1][0] * along <= up * edges[-1][1]:
            before = edges.pop()
            up, along = up + before[0], along + before[1]
        edges.append((up, along, k))
    vertices = np.array([0, *(k for _, _, k in edges)])
    length = np.diff(vertices)
    up, along = (
        np.repeat(np.array(x, dtype=p.dtype), length) for x in zip(*((e[0], e[1]) for e in edges), strict=True)
    )
    # Tokens without target mass form an edge of their own, shared by q: all that is left to tell them apart.
    whole = np.repeat(np.add.reduceat(q, vertices[:-1]), length)
    return vertices, up * np.where(along > 0, divide(p, along), q / whole)


def _cumulated(law: Row) -> Row:
    """0, then the running sums of a law, ending in 1 exactly."""
    sums = np.concatenate([law[:1] * 0, np.cumsum(law)])
    sums[-1] = sums[0] + 1
    return np.minimum(sums, sums[-1])


def _complete(degree: int, *x: Row) -> Row:
    """Complete homogeneous polynomial: the sum of all monomials of that degree in the variables.

    It is the divided difference of L^K: of degree K - 1 in two points the slope of a chord, of degree K - 2 in three
    points the change of slope.
    """
    total = int(degree >= 0)
    for n in range(1, degree + 1):
        total = total * x[-1] + (_complete(n, *x[:-1]) if len(x) > 1 else 0)
    return total
