"""Tokens that a drafter cannot guess are all alike to a rule: one token stands for the rest of the vocabulary.

Their q is zero, so nothing that a rule decides depends on how p is spread among them (Leviathan et al. 2211.17192: they
only come from what p has left). Rules work on the tokens that can be guessed and the rest; what is emitted in the end
is drawn from a law of all tokens, in which the rest is spread as p has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from array_api_compat import array_namespace

from draftproof.draft import Draft, Tree
from draftproof.engine.eager.rows import beside, together
from draftproof.law import Array, divide


class Rest(NamedTuple):
    """What the rest consists of."""

    names: Array  # [D] the tokens that can be guessed, ascending
    p: Array  # [B, N, V] the target's law after each node
    mass: Array  # [B, N] of the rest in p

    def spread(self, law: Array, rows: Sequence[int], nodes: Sequence[int]) -> Array:
        """[R, V] from laws [R, D + 1] of the tokens emitted after these nodes of these rows."""
        rows, nodes = list(rows), list(nodes)
        each = divide(law[:, -1], self.mass[rows, nodes])
        wide = self.p[rows, nodes] * each[:, None]
        wide[:, self.names] = law[:, :-1]
        return wide


def merge(tree: Tree, tokens: np.ndarray, q: Array, p: Array, names: np.ndarray) -> tuple[Draft, Rest]:
    """The draft in D + 1 tokens: names [D] in ascending order, then the rest. q is [B, N, D], p [B, N, V]."""
    xp = array_namespace(p)
    p, (q,) = together(p, [q])
    chosen, outside = beside(names, p), p[0, 0] * 0 + 1
    outside[chosen] = 0
    mass = p @ outside  # summed up and not 1 minus the others: it is zero where there is nothing
    places = np.where(tokens < 0, -1, np.searchsorted(names, tokens))
    places[:, 0] = 0  # the last committed token, which may be any
    merged = [
        xp.concat([law, end], axis=-1)
        for law, end in ((q, q[..., :1] * 0), (xp.take(p, chosen, axis=-1), mass[..., None]))
    ]
    return Draft(tree, beside(places, p), *merged), Rest(chosen, p, mass)
