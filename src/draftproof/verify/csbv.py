"""Selected block verification that carries ties: K independent paths, thinned level by level, one block-verified.

Hull and peel (bound: Hu et al., arXiv 2502.18779) cuts a context's tokens into classes: intervals of the draft's mass,
in order of p/q. Each path still alive draws a point in the interval of its token, in its own context. The highest wins,
and every path in the winner's interval lives on, so that paths with different tokens may both serve deeper down. The
points are uniform whatever the context, so the winner's token has the plan's law `a`, and block verification
(2403.10444) of the path that is left in the end is exact with a in place of q.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from draftproof import hull
from draftproof.draft import Draft, Selection, Tree
from draftproof.law import Array, row
from draftproof.verify import _paths, block, register
from draftproof.verify._pick import Pick, beside, interval, pick

Path = tuple[int, ...]
Planner = Callable[[Path, int], Pick]  # (context, number of paths alive) -> plan
Intervals = dict[int, tuple[Any, Any]]  # path -> interval of its next token's class


def select(draft: Draft, u: Array) -> Selection:
    """One path, with u [B, L (K + 1)]: at every level a number for the classes and one for each path's point."""
    xp = array_namespace(draft.tokens)
    _, length, width = _paths.guesses(draft).shape
    chosen, picked = [], []  # the path of each draft, and the plans along it
    for b, numbers in enumerate(u.tolist()):
        paths, plan = _paths_of(draft, b), _planner(draft, b)
        alive, sizes = list(range(width)), []
        for depth in range(length):
            sizes.append(len(alive))
            if len(alive) > 1:
                level = numbers[depth * (width + 1) : (depth + 1) * (width + 1)]
                alive = survivors(_intervals(paths, alive, depth, plan, level[0]), level[1:])
        path = paths[alive[0]]
        chosen.append(alive[0])
        picked.append([plan(path[:d], k) if k > 1 and path[d] >= 0 else None for d, k in enumerate(sizes)])

    best = beside(np.array(chosen), like=draft.tokens)
    nodes = [best * 0] + [best + 1 + depth * width for depth in range(length)]
    laws = []
    for depth in range(length):
        q = row(draft.q, nodes[depth])  # also the pick's law where one path was left
        plans = [plan[depth] for plan in picked]
        laws.append(xp.stack([q[b] if p is None else beside(p.law, like=q) for b, p in enumerate(plans)], axis=0))
    return _paths.chosen(draft, nodes, laws)


def survivors(intervals: Intervals, v: Sequence[Any]) -> list[int]:
    """The paths that share the interval of the highest of the points low + v (high - low)."""
    points = {j: low + v[j] * (high - low) for j, (low, high) in intervals.items()}
    best = max(points, key=lambda j: points[j])
    return [j for j in intervals if intervals[j] == intervals[best]]


def cells(draft: Draft) -> list[tuple[Array, Any]]:
    """For one draft (B = 1): numbers `u` for `select` and their weights, such that the weighted sum is the integral.

    `select` is constant between the values of the class number at which a boundary of some plan stops cutting, and
    between the orders of the points; two points in one stretch of the intervals' ends come in either order alike.
    """
    paths, plan = _paths_of(draft, 0), _planner(draft, 0)
    half = (draft.p[0, 0, 0] * 0 + 1) / 2  # a Fraction where the laws are
    branches: list[tuple[list[Any], Any, list[int]]] = [([], half * 2, list(range(len(paths))))]
    for depth in range(draft.tree.depth[-1]):
        grown = []
        for numbers, weight, alive in branches:
            outcomes: dict[Path, tuple[list[Any], Any]] = {}
            for level, share in _level(paths, alive, depth, plan, half):
                left = alive
                if len(alive) > 1:
                    left = survivors(_intervals(paths, alive, depth, plan, level[0]), level[1:])
                _, before = outcomes.get(tuple(left), (level, 0))
                outcomes[tuple(left)] = level, before + share  # what follows depends on the survivors alone
            grown += [([*numbers, *level], weight * share, list(left)) for left, (level, share) in outcomes.items()]
        branches = grown
    return [(np.array(numbers), weight) for numbers, weight, _ in branches]


def _level(paths: list[Path], alive: list[int], depth: int, plan: Planner, half: Any) -> list[tuple[list[Any], Any]]:
    """Numbers for one level and their weights."""
    width = len(paths)
    if len(alive) == 1:
        return [([half] * (width + 1), half * 2)]
    cuts = {half * 0, half * 2}
    for context in {paths[j][:depth] for j in alive if paths[j][depth] >= 0}:
        p = plan(context, len(alive)).plan
        cuts |= {hull.threshold(p, place, place + 1) for place in range(1, len(p.order))}
    numbers = []
    for low, high in itertools.pairwise(sorted(cuts)):
        intervals = _intervals(paths, alive, depth, plan, (low + high) * half)
        for v, share in _points(intervals, width, half):
            numbers.append(([(low + high) * half, *v], share * (high - low)))
    return numbers


def _points(intervals: Intervals, width: int, half: Any) -> list[tuple[list[Any], Any]]:
    """Points of the paths, as shares of their intervals, and their weights; dead paths keep one half."""
    ends = sorted({end for interval in intervals.values() for end in interval})
    stretches = list(itertools.pairwise(ends))
    inside = [[s for s in stretches if low <= s[0] and s[1] <= high] for low, high in intervals.values()]
    points = []
    for choice in itertools.product(*inside):
        top = [n for n, stretch in enumerate(choice) if stretch == max(choice)]
        for winner in top:
            v, share = [half] * width, half * 2 / len(top)
            for n, ((j, (low, high)), (start, end)) in enumerate(zip(intervals.items(), choice, strict=True)):
                point = start + (end - start) * (half if n == winner else half * half)
                v[j] = (point - low) / (high - low)
                share = share * (end - start) / (high - low)
            points.append((v, share))
    return points


def _paths_of(draft: Draft, b: int) -> list[Path]:
    """The tokens of the K paths."""
    levels = _paths.guesses(draft)[b]
    return [tuple(levels[:, j].tolist()) for j in range(levels.shape[1])]


def _planner(draft: Draft, b: int) -> Planner:
    """Plans of one draft, each made once: paths with equal tokens so far share their context."""
    paths = _paths_of(draft, b)

    @cache
    def plan(context: Path, k: int) -> Pick:
        depth = len(context)
        path = next(j for j, tokens in enumerate(paths) if tokens[:depth] == context)
        node = 1 + (depth - 1) * len(paths) + path if depth else 0
        return pick(draft.p[b, node], draft.q[b, node], k)

    return plan


def _intervals(paths: list[Path], alive: list[int], depth: int, plan: Planner, u: Any) -> Intervals:
    """The interval of each living path; a path that has ended has one class, everything."""
    intervals = {}
    for j in alive:
        token = paths[j][depth]
        intervals[j] = interval(plan(paths[j][:depth], len(alive)), token, u) if token >= 0 else (0, 1)
    return intervals


def _uniforms(tree: Tree) -> int:
    return tree.size - 1 + tree.depth[-1]


register(
    "csbv",
    summary="K independent paths thinned level by level, ties carried on, then block verification",
    paper="2403.10444, 2502.18779",
    draws={"iid"},
    trees="paths",
    stop=block.stop,
    next=block.next,
    select=select,
    uniforms=_uniforms,
    cells=cells,
)
