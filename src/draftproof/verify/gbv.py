"""Greedy multi-path block verification (Thomas & Pal, arXiv 2602.16961): the lexicographically best of K paths.

At every context tokens are ordered by p/q, so paths are ordered too, and a prefix is an interval of the draft's
cumulated law, from `low` to `low + mass`. The best of K independent paths falls into it with (low + mass)^K - low^K:
the law of its next token is a difference of powers, and block verification finishes with that law in place of q.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.draft import Draft, Selection
from draftproof.law import Array, at, divide, row
from draftproof.verify import _paths, register


def select(draft: Draft) -> Selection:
    """The best path. No randomness: of equal paths the first stands for all."""
    xp = array_namespace(draft.tokens)
    guesses = _paths.guesses(draft)  # [B, L, K]
    length, width = guesses.shape[1:]
    node = draft.tokens[:, 0] * 0
    low, mass = draft.p[:, 0, 0] * 0, draft.p[:, 0, 0] * 0 + 1
    alive = xp.stack([node == 0] * width, axis=1)  # [B, K] paths that still agree with the best
    nodes, laws = [node], []
    for i in range(length):
        p, q, x = row(draft.p, node), row(draft.q, node), guesses[:, i, :]
        place, below = _order(p, q)
        start = low[:, None] + mass[:, None] * below
        laws.append(q * divide(_powers(start, mass[:, None] * q, width), _powers(low, mass, width)[:, None]))
        places = xp.stack([at(place, x[:, k]) for k in range(width)], axis=1)
        best = xp.argmax(xp.where(alive, places, -1), axis=1)
        token = at(x, best)
        alive = alive & (x == token[:, None])
        low, mass = at(start, token), mass * at(q, token)
        node = best + 1 + i * width
        nodes.append(node)
    return _paths.chosen(draft, nodes, laws)


def _order(p: Array, q: Array) -> tuple[Array, Array]:
    """Place [B, V] of each token by ascending p/q, and the mass [B, V] of q at the places before it."""
    xp = array_namespace(p)
    order = xp.argsort(divide(p, q), axis=-1, stable=True)
    place = xp.argsort(order, axis=-1)
    sorted_q = xp.take_along_axis(q, order, axis=-1)
    return place, xp.take_along_axis(xp.cumulative_sum(sorted_q, axis=-1) - sorted_q, place, axis=-1)


def _powers(low: Array, mass: Array, k: int) -> Array:
    """((low + mass)^k - low^k) / mass, as a sum without cancellation."""
    high = low + mass
    total = low * 0
    for i in range(k):
        total = total + high**i * low ** (k - 1 - i)
    return total


def stop(draft: Draft) -> Array:
    """[B, N]: where block verification ends on the best path."""
    return _paths.stop(draft, select(draft))


def next(draft: Draft, node: Array) -> Array:
    """[B, V]: what block verification emits there."""
    return _paths.next(draft, select(draft), node)


register(
    "gbv",
    summary="the lexicographically best of K independent paths, then block verification",
    paper="2602.16961",
    draws={"iid"},
    trees="paths",
    stop=stop,
    next=next,
)
