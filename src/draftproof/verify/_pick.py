"""Hull and peel for one context of a draft: which candidate to go on with, and the law of that pick."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, to_device

from draftproof import hull
from draftproof.law import Array

MOST = 1024  # tokens planned one by one; a wider support is planned in groups of nearly equal p/q
FINENESS = 64  # groups for a factor e in p/q: at most about 1 / (8 * 64) = 0.002 of the acceptance is lost


class Pick(NamedTuple):
    """A plan over groups of tokens; for a small support every token is its own group."""

    plan: hull.HullPlan
    group: Any  # [V] group of each token
    law: Any  # [V] law of the picked token


def pick(p: Array, q: Array, siblings: int, most: int = MOST) -> Pick:
    """The plan for rows p, q [V] and k guesses. Any grouping is exact: in a group the pick's law is a share of q."""
    p, q = host(p), host(q)
    if np.count_nonzero(q) <= most:
        plan = hull.plan(p, q, siblings)
        return Pick(plan, np.arange(len(q)), plan.law)
    group = _by_ratio(p.astype(np.float64), q.astype(np.float64))
    p_group, q_group = np.zeros((2, group.max() + 1), dtype=q.dtype)
    np.add.at(p_group, group, p)
    np.add.at(q_group, group, q)
    plan = hull.plan(p_group, q_group, siblings)
    share = q / np.where(q_group > 0, q_group, q_group + 1)[group]
    return Pick(plan, group, plan.law[group] * share)


def winner(pick: Pick, tokens: list[int]) -> list[Any]:
    """The probability that each of the guesses is the pick."""
    return hull.winner(pick.plan, pick.group[tokens])


def interval(pick: Pick, token: int, u: Any) -> tuple[Any, Any]:
    """The class of a guess for a uniform u, as an interval of the draft's mass in order of p/q."""
    i, j = hull.segment(pick.plan, int(pick.plan.place[pick.group[token]]), u)
    return pick.plan.L[i], pick.plan.L[j]


def beside(row: Any, like: Array) -> Array:
    """A NumPy row in the namespace, precision and device of `like`."""
    return array_namespace(like).asarray(row, dtype=like.dtype, device=like.device)


def host(row: Array) -> Any:
    """The row as NumPy, of Fractions or of float64."""
    row = np.asarray(to_device(row, "cpu"))
    return row if row.dtype == object else row.astype(np.float64)


def _by_ratio(p: Any, q: Any) -> Any:
    """[V] group of each token: bins of log p/q, the outermost open; tokens that cannot be drawn may go anywhere."""
    ratio = np.where((p > 0) & (q > 0), p, 1) / np.where((p > 0) & (q > 0), q, 1)
    bins = np.clip(np.floor(np.log(ratio) * FINENESS), -8 * FINENESS, 8 * FINENESS)
    return np.where(p > 0, bins, -8 * FINENESS - 1).astype(np.int64) + 8 * FINENESS + 1
