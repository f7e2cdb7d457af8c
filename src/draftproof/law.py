"""Arithmetic on laws: rows of non-negative numbers that sum to one, or to zero where nothing was drawn.

Everything here runs unchanged on NumPy, on torch and on NumPy arrays of Fractions.
"""

from __future__ import annotations

import math
from typing import Any

from array_api_compat import array_namespace

Array = Any  # NumPy, torch, or a NumPy array of fractions.Fraction: whatever the array namespace serves


def positive(x: Array) -> Array:
    """(x)+, entry by entry."""
    return x.clip(min=0)  # many times as fast as `where`, and laws are long


def divide(a: Array, b: Array, otherwise: int = 0) -> Array:
    """a / b where b > 0 and `otherwise` elsewhere: 0/0 is never evaluated, so Fractions and floats agree."""
    xp = array_namespace(a, b)
    safe = b > 0
    return xp.where(safe, a / xp.where(safe, b, b * 0 + 1), b * 0 + otherwise)


def capped_ratio(p: Array, q: Array) -> Array:
    """min(1, p / q), and 0 where q is: as min(p, q) / q it cannot overflow, however small q."""
    return divide(array_namespace(p, q).where(p < q, p, q), q)


def normalise(weights: Array) -> Array:
    """Weights scaled to sum to one along the last axis; an all-zero row stays zero."""
    xp = array_namespace(weights)
    return divide(weights, xp.sum(weights, axis=-1, keepdims=True))


def residual(p: Array, q: Array) -> Array:
    """The law proportional to (p - q)+; p itself where that vanishes (an event of probability zero but for rounding).

    `p` need not be normalised: block verification passes w * p.
    """
    xp = array_namespace(p, q)
    rest = positive(p - q)
    return normalise(xp.where(xp.sum(rest, axis=-1, keepdims=True) > 0, rest, p))


def overlap(p: Array, q: Array) -> Array:
    """sum min(p, q) = 1 - TV(p, q): the best acceptance any rule can reach with one draft from q."""
    xp = array_namespace(p, q)
    return xp.sum(xp.where(p < q, p, q), axis=-1)


def total_variation(p: Array, q: Array) -> Array:
    """Half the absolute difference, summed: 0 for equal laws, 1 for disjoint ones."""
    xp = array_namespace(p, q)
    return xp.sum(abs(p - q), axis=-1) / 2


def at(rows: Array, tokens: Array) -> Array:
    """The entry of each row [..., V] at its token [...]; -1 (not drawn) reads entry 0, for the caller to mask."""
    xp = array_namespace(rows, tokens)
    index = xp.where(tokens < 0, tokens * 0, tokens)
    return xp.take_along_axis(rows, index[..., None], axis=-1)[..., 0]


def row(rows: Array, node: Array) -> Array:
    """The row of each batch entry at its node: rows [B, N, ...], node [B] -> [B, ...]."""
    batch = array_namespace(rows, node).arange(rows.shape[0], **_device(rows))
    return rows[batch, node]


def one_hot(tokens: Array, like: Array) -> Array:
    """[..., V] rows with all mass on each token; the zero row for -1. V, dtype and device are those of `like`."""
    xp = array_namespace(like)
    ids = xp.arange(like.shape[-1], **_device(like))
    hit = ids == tokens[..., None]
    zeros = xp.zeros(hit.shape, dtype=like.dtype, **_device(like))
    return xp.where(hit, zeros + 1, zeros)


def sample(law: Array, u: Array) -> Array:
    """The token at which the cumulated law first exceeds u: inverse transform with one uniform a row.

    law [..., V], u [...] in [0, 1) -> [...]. A token of probability zero is never returned, whatever u. Sums run in
    float64 because a float32 sum over a large vocabulary would bend the tail.
    """
    xp = array_namespace(law)
    cumulated = xp.cumulative_sum(law, axis=-1, dtype=law.dtype if law.dtype == object else xp.float64)
    total = cumulated[..., -1]
    threshold = u * total
    if math.prod(law.shape[:-1]) == 1:  # a binary search; namespaces have it for one row only
        ascending = xp.reshape(cumulated, (-1,))
        token, last = (
            xp.reshape(xp.searchsorted(ascending, xp.reshape(bound, (-1,)), side=side), total.shape)
            for bound, side in ((threshold, "right"), (total, "left"))
        )
    else:
        token = xp.sum(xp.astype(cumulated <= threshold[..., None], xp.int64), axis=-1)
        last = xp.sum(xp.astype(cumulated < total[..., None], xp.int64), axis=-1)
    return xp.where(token < last, token, last)  # u * total may round up to total


def _device(like: Array) -> dict[str, Array]:
    """Keyword that places a new array beside `like`; NumPy arrays need none."""
    device = getattr(like, "device", "cpu")
    return {} if device == "cpu" else {"device": device}
