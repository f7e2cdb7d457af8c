"""How the children of a node are drawn from the draft's law: the sampler and its probability, side by side.

`sample(q, u)` turns a law [B, V] and uniforms [B, K] into K tokens [B, K]; `probability(q, tokens)` is the exact chance
[B] of that outcome. Verifiers declare the ways of drawing they are exact for. A zero row of q (no guess) draws -1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from array_api_compat import array_namespace

from draftproof import law
from draftproof.law import Array


class Draw(NamedTuple):
    """One way of drawing siblings."""

    name: str
    summary: str
    sample: Callable[[Array, Array], Array]
    probability: Callable[[Array, Array], Array]


def _one(q: Array, u: Array) -> Array:
    """One token [B] of each row, -1 where the row is zero: a drafter with nothing (more) to guess."""
    xp = array_namespace(q)
    token = law.sample(q, u)
    return xp.where(xp.sum(q, axis=-1) > 0, token, token * 0 - 1)


def _chance(q: Array, token: Array) -> Array:
    """Chance [B] that `_one` returns the token."""
    xp = array_namespace(q)
    mass = law.at(q, token)
    empty = mass * 0 + xp.astype(xp.sum(q, axis=-1) == 0, xp.int64)
    return xp.where(token >= 0, mass, empty)


def _without(q: Array, token: Array) -> Array:
    """q with the token taken out, renormalised; zero once nothing is left."""
    return law.normalise(q * (1 - law.one_hot(token, like=q)))


def _sample_iid(q: Array, u: Array) -> Array:
    xp = array_namespace(q)
    return xp.stack([_one(q, u[:, k]) for k in range(u.shape[1])], axis=1)


def _probability_iid(q: Array, tokens: Array) -> Array:
    chance = q[:, 0] * 0 + 1
    for k in range(tokens.shape[1]):
        chance = chance * _chance(q, tokens[:, k])
    return chance


def _sample_distinct(q: Array, u: Array) -> Array:
    tokens = []
    for k in range(u.shape[1]):
        tokens.append(_one(q, u[:, k]))
        q = _without(q, tokens[-1])
    return array_namespace(q).stack(tokens, axis=1)


def _probability_distinct(q: Array, tokens: Array) -> Array:
    chance = q[:, 0] * 0 + 1
    for k in range(tokens.shape[1]):
        chance = chance * _chance(q, tokens[:, k])
        q = _without(q, tokens[:, k])
    return chance


def _sample_fixed(q: Array, u: Array) -> Array:
    xp = array_namespace(q)
    tokens = []
    for _ in range(u.shape[1]):
        best = xp.argmax(q, axis=-1)  # the first of equals: no noise is used, u only says how many
        tokens.append(xp.where(xp.sum(q, axis=-1) > 0, best, best * 0 - 1))
        q = q * (1 - law.one_hot(tokens[-1], like=q))
    return xp.stack(tokens, axis=1)


def _probability_fixed(q: Array, tokens: Array) -> Array:
    xp = array_namespace(q)
    chosen = _sample_fixed(q, tokens)
    same = xp.all(chosen == tokens, axis=1)
    one = q[:, 0] * 0 + 1
    return xp.where(same, one, one * 0)


DRAWS = {
    draw.name: draw
    for draw in (
        Draw("iid", "each child independently from q", _sample_iid, _probability_iid),
        Draw("distinct", "one after another from q, without replacement", _sample_distinct, _probability_distinct),
        Draw("fixed", "the most probable tokens of q, no randomness", _sample_fixed, _probability_fixed),
    )
}
