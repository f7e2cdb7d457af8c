"""Decide on a reduced vocabulary: one token stands for all tokens that a drafter cannot guess.

Their q is zero, so no decision of a rule depends on how p is spread among them (Leviathan et al. 2211.17192: they can
only come from the residual). Rules work on the tokens that can be guessed plus one for the rest; the emitted token is
drawn from a law of all tokens, in which the mass of the rest is spread in proportion to p.
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
    """The merged rest of the vocabulary, and how to spread its mass again."""

    names: Array  # [D] the tokens that can be guessed, ascending
    p: Array  # [B, N, V] the target's law after each node
    mass: Array  # [B, N] of the rest in p

    def spread(self, law: Array, rows: Sequence[int], nodes: Sequence[int]) -> Array:
        """Expand laws [R, D + 1] of the tokens emitted after these nodes of these rows to [R, V]."""
        rows, nodes = list(rows), list(nodes)
        share = divide(law[:, -1], self.mass[rows, nodes])
        full = self.p[rows, nodes] * share[:, None]
        full[:, self.names] = law[:, :-1]
        return full


def merge(tree: Tree, tokens: np.ndarray, q: Array, p: Array, names: np.ndarray) -> tuple[Draft, Rest]:
    """The draft in D + 1 tokens: names [D] in ascending order, then the rest. q is [B, N, D], p [B, N, V]."""
    xp = array_namespace(p)
    p, (q,) = together(p, [q])
    chosen, outside = beside(names, p), p[0, 0] * 0 + 1
    outside[chosen] = 0
    mass = p @ outside  # a sum, not 1 minus the others, so that it is exactly zero where there is none
    places = np.where(tokens < 0, -1, np.searchsorted(names, tokens))
    places[:, 0] = 0  # the last committed token: never looked up
    merged = [
        xp.concat([law, end], axis=-1)
        for law, end in ((q, q[..., :1] * 0), (xp.take(p, chosen, axis=-1), mass[..., None]))
    ]
    return Draft(tree, beside(places, p), *merged), Rest(chosen, p, mass)
