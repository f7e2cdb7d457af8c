"""Gumbel coupling (Daliri et al., arXiv 2408.07978): draft and target run the same exponential race at two speeds.

With standard exponentials E the token argmin E_i / p_i follows p. The drafter runs the same E at its own speeds q, so
where q is close to p the winner is mostly the same.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.couple import register
from draftproof.law import Array, divide, one_hot
from draftproof.rule import Coupling


def times(law: Array, noise: Array) -> Array:
    """[..., V]: when each token arrives; never, where the law is zero. In float64: probabilities may be very small."""
    xp = array_namespace(law, noise)
    law = xp.astype(law, xp.float64)
    return xp.where(law > 0, noise / xp.where(law > 0, law, law * 0 + 1), float("inf"))


def first(arrival: Array) -> Array:
    """[...]: the token that arrives first, -1 if none ever does."""
    xp = array_namespace(arrival)
    token = xp.argmin(arrival, axis=-1)
    return xp.where(xp.min(arrival, axis=-1) < float("inf"), token, token * 0 - 1)


def draft(q: Array, noise: Array, siblings: int) -> Array:
    """[B, K]: the first K to arrive at speeds q; they are a draw without replacement."""
    xp = array_namespace(q)
    arrival, tokens = times(q, noise[:, 0]), []
    for _ in range(siblings):
        tokens.append(first(arrival))
        arrival = xp.where(one_hot(tokens[-1], like=arrival) > 0, float("inf"), arrival)
    return xp.stack(tokens, axis=1)


def emit(p: Array, noise: Array) -> Array:
    """[B]: the first to arrive at speeds p."""
    return first(times(p, noise[:, 0]))


def match_probability(p: Array, q: Array, streams: int = 1) -> Array:
    """[B]: how often one guess from q is the token emitted from p: sum_j 1 / sum_i max(p_i / p_j, q_i / q_j).

    For a list of K streams (`gumbel_list`) it is a lower bound on how often one of K guesses is, tight at K = 1. Sorted
    by p/q the maximum is p_i / p_j from j on and q_i / q_j before it, so two running sums do.
    """
    xp = array_namespace(p, q)
    order = xp.argsort(divide(p, p + q), axis=-1)
    p, q = xp.take_along_axis(p, order, axis=-1), xp.take_along_axis(q, order, axis=-1)
    before = xp.cumulative_sum(q, axis=-1) - q
    onward = xp.flip(xp.cumulative_sum(xp.flip(p, axis=-1), axis=-1), axis=-1)
    return xp.sum(divide(streams * p * q, onward * q + before * p + (streams - 1) * q), axis=-1)


register(
    Coupling(
        "gumbel",
        summary="one race for draft and target: same seed, same text, with or without speculation",
        paper="2408.07978",
        streams=1,
        draft=draft,
        emit=emit,
    )
)
