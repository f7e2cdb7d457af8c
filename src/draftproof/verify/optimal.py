"""Optimal pick of K i.i.d. candidates (reaches the limit of Hu et al., arXiv 2502.18779, without linear programs).

Hull and peel (draftproof.hull) picks one guess such that the law `a` of the pick is as close to p as it can be; the
token rule with `a` in place of q does the rest. The number of siblings has to be fixed before any is drawn.
"""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace

from draftproof.law import Array
from draftproof.verify import register
from draftproof.verify._pick import beside, pick, winner
from draftproof.verify._topdown import judge, top_down


def rule(p: Array, laws: list[Array], tokens: Array) -> tuple[Array, Array]:
    """Pick one guess, then the token rule."""
    a, chosen = choose(p, laws[0], tokens)
    return judge(p, a, chosen, tokens)


def choose(p: Array, q: Array, tokens: Array) -> tuple[Array, Array]:
    """The law [B, V] of the picked token, and the probability [B, K] that each guess is it; zero without guesses."""
    xp = array_namespace(tokens)
    laws, chances = [], []
    for p_row, q_row, guesses in zip(p, q, tokens.tolist(), strict=True):
        drawn = [k for k, token in enumerate(guesses) if token >= 0]
        chance, a = np.zeros(len(guesses), dtype=object), q_row * 0
        if len(drawn) == 1:
            chance[drawn], a = 1, q_row
        elif drawn:
            best = pick(p_row, q_row, len(drawn), most=q_row.shape[0])
            chance[drawn] = winner(best, [guesses[k] for k in drawn])
            a = beside(best.law, like=q_row)
        laws.append(a)
        chances.append(beside(chance if p.dtype == object else chance.astype(np.float64), like=q_row))
    return xp.stack(laws, axis=0), xp.stack(chances, axis=0)


stop, next = top_down(rule)

register(
    "optimal",
    summary="picks a candidate by hull and peel, then the token rule; no rule accepts more of K i.i.d. ones",
    paper="2502.18779",
    draws={"iid"},
    trees="any",
    stop=stop,
    next=next,
)
