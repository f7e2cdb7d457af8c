"""Limits in closed form: how often any exact rule can accept a candidate, given the laws (Hu et al. 2502.18779).

With D the set of guesses, no rule accepts more than min over sets S of p(S) + P(D not inside S), and some rule reaches
it (a minimal cut of the transport from guesses to tokens). P(D not inside S) depends on how guesses are drawn, so every
way of drawing has a limit of its own, and a rule is bound by that of the draws it gets. For one guess it is 1 - TV(p,
q), `law.overlap`. For independent guesses and for distinct ones the best S is a prefix of the tokens in ascending order
of p/q, so sorting finds it. Rows are [..., V]; NumPy, torch or Fractions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from draftproof.draws import all_but_one, rest, tops
from draftproof.law import Array, divide, one_hot
from draftproof.theory.enumerate import Context, Model


class Cut(NamedTuple):
    """A limit, and the set S for which p(S) + P(D not inside S) is it; the empty set where the limit is one."""

    limit: Array  # [...]
    inside: Array  # [..., V] whether a token is in S


def iid(p: Array, q: Array, siblings: int) -> Array:
    """[...]: the limit for K independent guesses from q, 1 - max over prefixes of q(S)^K - p(S)."""
    return iid_cut(p, q, siblings).limit


def iid_cut(p: Array, q: Array, siblings: int) -> Cut:
    """The limit for K independent guesses from q, and its set."""
    xp = array_namespace(p, q)
    order, p_mass, q_mass = _prefixes(p, q)
    gap, inside = _best_prefix(order, q_mass**siblings - p_mass)
    drawn = xp.sum(q, axis=-1) > 0
    limit = xp.where(drawn, xp.where(gap > 0, 1 - gap, gap * 0 + 1), gap * 0)
    return Cut(limit, inside)


def pair(p: Array, q: Array) -> Array:
    """[...]: the limit for two identical drafts as Khisti et al. (arXiv 2410.18234) state it.

    min over S of p(S) + q(S')^2 + 2 q(S) q(S'), with S' the complement: both guesses outside S, or one of them.
    """
    xp = array_namespace(p, q)
    _, p_mass, q_mass = _prefixes(p, q)
    cut = xp.min(p_mass + (1 - q_mass) ** 2 + 2 * q_mass * (1 - q_mass), axis=-1)
    return xp.where(cut < 1, cut, cut * 0 + 1)


def certain(p: Array, q: Array, siblings: int) -> Array:
    """[...]: whether one of K i.i.d. guesses can always be accepted: if and only if q(S)^K <= p(S) for every set S.

    Floats get 1e-12 of slack, because both sides are 1 for the whole vocabulary; Fractions get none.
    """
    _, p_mass, q_mass = _prefixes(p, q)
    slack = 0 if p.dtype == object else 1e-12
    return array_namespace(p, q).all(q_mass**siblings - p_mass <= slack, axis=-1)


def after_top(p: Array, q: Array, siblings: int, count: Array) -> Array:
    """[B]: the limit if the `count` [B] top tokens of q are guesses for sure and the others i.i.d. from the rest.

    Rows [B, V]. With none left to chance it is the target's mass on the guesses.
    """
    return after_top_cut(p, q, siblings, count).limit


def after_top_cut(p: Array, q: Array, siblings: int, count: Array) -> Cut:
    """The limit if the `count` [B] top tokens of q are guesses for sure, and its set, which has these tokens in it."""
    xp = array_namespace(p, q)
    top, free = rest(q, count, siblings)
    outside = p * 0 + 1
    for k in range(siblings):
        outside = outside * (1 - one_hot(top[:, k], like=p))
    order, p_mass, q_mass = _prefixes(p * outside, free)
    surely = xp.sum(p, axis=-1) - xp.sum(p * outside, axis=-1)
    gap, inside = _best_prefix(order, q_mass ** (siblings - count)[:, None] - p_mass)
    gap = gap - surely
    chance = (count < siblings) & (xp.sum(free, axis=-1) > 0)
    limit = xp.where(chance, xp.where(gap > 0, 1 - gap, gap * 0 + 1), surely)
    certain = chance & (gap <= 0)
    return Cut(limit, ((inside & chance[:, None]) | (outside == 0)) & ~certain[:, None])


def distinct(p: Any, q: Any, siblings: int, nodes: int = 1200) -> float:
    """The limit for K guesses drawn one after another without replacement; one row [V] of NumPy floats."""
    return float(distinct_cut(p, q, siblings, nodes).limit)


def distinct_cut(p: Any, q: Any, siblings: int, nodes: int = 1200) -> Cut:
    """The limit for K distinct guesses, and its set.

    Token i arrives at an exponential time of rate q_i and the first K to arrive are the guesses. All lie in S if K
    tokens of S arrive before any other, at time t of which the density is known, so P(D inside S) is an integral over t
    of the probability that at least K of S have arrived, which a count updated token by token gives for every prefix.
    """
    order = np.nonzero(q > 0)[0]
    order = order[np.argsort(p[order] / q[order], kind="stable")]
    siblings = min(siblings, len(order))
    if siblings == 0:
        return Cut(0.0, q > 0)
    step = 85 / nodes
    t = np.exp(np.arange(-40, 45, step))
    fewer = np.zeros((siblings, len(t)))  # probability that exactly 0 .. K-1 tokens of S arrived by t
    fewer[0] = 1
    others = np.append(np.cumsum(q[order][::-1])[::-1][1:], 0.0)  # draft mass outside S, without cancellation
    inside, gap, best = 0.0, 0.0, 0
    for rank, (token, outside) in enumerate(zip(order, others, strict=True), start=1):
        arrived = -np.expm1(-q[token] * t)
        fewer[1:] += arrived * (fewer[:-1] - fewer[1:])
        fewer[0] *= 1 - arrived
        inside += p[token]
        all_in_s = (
            float(np.sum(outside * t * np.exp(-outside * t) * (1 - fewer.sum(axis=0)))) * step if outside else 1.0
        )
        if all_in_s - inside > gap:
            gap, best = all_in_s - inside, rank
    chosen = np.zeros(len(q), dtype=bool)
    chosen[order[:best]] = True
    return Cut(1 - gap, chosen)


def block(target: Model, drafter: Model, length: int, context: Context = ()) -> Any:
    """The largest expected number of accepted tokens of one drafted path (Sun et al., arXiv 2403.10444): sum of E[w_i].

    w_i = min(1, w_{i-1} p(x_i) / q(x_i)) bounds the probability of accepting x_1..x_i whatever the rule.
    """

    def below(path: Context, drawn: Any, w: Any) -> Any:
        if len(path) == length or drawn == 0:
            return 0
        total, p, q = 0, target(context + path), drafter(context + path)
        for token in range(len(p)):
            if q[token] > 0:
                weight = min(1, w * p[token] / q[token])
                total += drawn * q[token] * weight + below((*path, token), drawn * q[token], weight)
        return total

    return below((), 1, 1)


def _distinct_rows(p: Array, q: Array, siblings: int) -> Cut:
    """`distinct_cut` for each of the rows [B, V]."""
    cuts = [distinct_cut(*rows, siblings) for rows in zip(p, q, strict=True)]
    return Cut(np.array([cut.limit for cut in cuts]), np.stack([cut.inside for cut in cuts]))


# For each way of drawing (draftproof.draws): (p [B, V], q [B, V], K) -> limit [B] and set; for one guess, the overlap.
CUTS: dict[str, Callable[[Array, Array, int], Cut]] = {
    "iid": iid_cut,
    "distinct": _distinct_rows,
    "fixed": lambda p, q, siblings: after_top_cut(p, q, siblings, all_but_one(q, siblings) + 1),
    "top": lambda p, q, siblings: after_top_cut(p, q, siblings, all_but_one(q, siblings)),
    "plan": lambda p, q, siblings: after_top_cut(p, q, siblings, tops(q, siblings)),
}


def _limit(draw: str, p: Array, q: Array, siblings: int) -> Array:
    return CUTS[draw](p, q, siblings).limit


LIMITS: dict[str, Callable[[Array, Array, int], Array]] = {draw: partial(_limit, draw) for draw in CUTS}


def _prefixes(p: Array, q: Array) -> tuple[Array, Array, Array]:
    """Tokens in ascending order of p/q, those with q = 0 last, and p and q mass up to each of them; all [..., V]."""
    xp = array_namespace(p, q)
    ratio = divide(p, q)
    last = xp.max(ratio, axis=-1, keepdims=True) + 1
    order = xp.argsort(xp.where(q > 0, ratio, last), axis=-1, stable=True)
    p, q = (xp.take_along_axis(x, order, axis=-1) for x in (p, q))
    return order, xp.cumulative_sum(p, axis=-1), xp.cumulative_sum(q, axis=-1)


def _best_prefix(order: Array, gaps: Array) -> tuple[Array, Array]:
    """The largest gap [...], and the tokens [..., V] up to it in that order; none where it is not positive."""
    xp = array_namespace(gaps)
    best, rank = xp.argmax(gaps, axis=-1, keepdims=True), xp.argsort(order, axis=-1)
    return xp.max(gaps, axis=-1), (rank <= best) & (xp.max(gaps, axis=-1, keepdims=True) > 0)
