"""How the children of a node are drawn from the draft's law: the sampler and its probability, side by side.

`sample(q, u)` turns a law [B, V] and uniforms [B, K] into K tokens [B, K]; `probability(q, tokens)` is the exact chance
[B] of that outcome. Verifiers declare the ways of drawing they are exact for. A zero row of q (no guess) draws -1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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


def without(q: Array, token: Array) -> Array:
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
        q = without(q, tokens[-1])
    return array_namespace(q).stack(tokens, axis=1)


def _probability_distinct(q: Array, tokens: Array) -> Array:
    chance = q[:, 0] * 0 + 1
    for k in range(tokens.shape[1]):
        chance = chance * _chance(q, tokens[:, k])
        q = without(q, tokens[:, k])
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


def tops(q: Array, siblings: int) -> Array:
    """[B]: how many siblings the "plan" draw fixes to the top tokens, at most all but one, from q alone.

    Another one is fixed while the top token left has at least 0.74 of an even share of what is left: drawing would
    likely repeat it. The share is a rule of thumb; any number that is decided before drawing is exact. It is decided
    again when the guesses are verified, so in whole numbers, whose sums are the same in any order and precision.
    """
    xp = array_namespace(q)
    units = xp.astype(q * 2**40, xp.int64)
    left, count = xp.sum(units, axis=-1), units[:, 0] * 0
    for m in range(siblings - 1):
        top = xp.argmax(q, axis=-1)
        share = law.at(units, top)
        count = xp.where((count == m) & (50 * (siblings - m) * share >= 37 * left) & (left > 0), count + 1, count)
        left = left - share
        q = q * (1 - law.one_hot(top, like=q))
    return count


def all_but_one(q: Array, siblings: int) -> Array:
    """[B]: the "top" draw fixes every sibling but the last."""
    return array_namespace(q).astype(q[:, 0] * 0, array_namespace(q).int64) + siblings - 1


def rest(q: Array, count: Array, siblings: int) -> tuple[Array, Array]:
    """The `count` [B] top tokens of each row, -1 after them [B, K], and the law [B, V] of the other siblings."""
    xp = array_namespace(q)
    tokens = []
    for k in range(siblings):
        best = xp.argmax(q, axis=-1)  # the first of equals
        tokens.append(xp.where((k < count) & (xp.sum(q, axis=-1) > 0), best, best * 0 - 1))
        q = q * (1 - law.one_hot(tokens[-1], like=q))
    return xp.stack(tokens, axis=1), law.normalise(q)


def _sample_after(fixed: Callable[[Array, int], Array], q: Array, u: Array) -> Array:
    xp, siblings = array_namespace(q), u.shape[1]
    count = fixed(q, siblings)
    top, free = rest(q, count, siblings)
    return xp.stack([xp.where(k < count, top[:, k], _one(free, u[:, k])) for k in range(siblings)], axis=1)


def _probability_after(fixed: Callable[[Array, int], Array], q: Array, tokens: Array) -> Array:
    xp, siblings = array_namespace(q), tokens.shape[1]
    count = fixed(q, siblings)
    top, free = rest(q, count, siblings)
    chance = q[:, 0] * 0 + 1
    for k in range(siblings):
        same = xp.where(top[:, k] == tokens[:, k], chance * 0 + 1, chance * 0)
        chance = chance * xp.where(k < count, same, _chance(free, tokens[:, k]))
    return chance


DRAWS = {
    draw.name: draw
    for draw in (
        Draw("iid", "each child independently from q", _sample_iid, _probability_iid),
        Draw("distinct", "one after another from q, without replacement", _sample_distinct, _probability_distinct),
        Draw("fixed", "the most probable tokens of q, no randomness", _sample_fixed, _probability_fixed),
        Draw(
            "top",
            "the most probable tokens of q for all children but the last, which is drawn from the rest",
            partial(_sample_after, all_but_one),
            partial(_probability_after, all_but_one),
        ),
        Draw(
            "plan",
            "a number of most probable tokens that q decides, the other children independently from the rest",
            partial(_sample_after, tops),
            partial(_probability_after, tops),
        ),
    )
}
