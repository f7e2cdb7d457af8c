"""Recursive rejection with replacement (SpecInfer, arXiv 2305.09781): the token rule, one by one.

A refused guess leaves (p - q)+ as the target of the next. A repeated guess is refused for sure and still changes the
target; skipping it would be wrong. Guesses may come from different laws.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.law import Array, at, capped_ratio, residual
from draftproof.verify import register
from draftproof.verify._topdown import top_down


def rule(p: Array, laws: list[Array], tokens: Array) -> tuple[Array, Array]:
    """Try the guesses in order; p becomes what is left of it."""
    xp = array_namespace(tokens)
    accept, refused = [], p[:, 0] * 0 + 1
    for k, q in enumerate(laws):
        drawn = tokens[:, k] >= 0
        ratio = capped_ratio(at(p, tokens[:, k]), at(q, tokens[:, k]))
        kept = xp.where(drawn, ratio, ratio * 0)
        accept.append(refused * kept)
        refused = refused * (1 - kept)
        p = xp.where(drawn[:, None], residual(p, q), p)
    return xp.stack(accept, axis=1), p


stop, next = top_down(rule, several_laws=True)

register(
    "recursive",
    summary="candidates one by one by the token rule, each against what the last one left; allows several drafters",
    paper="2305.09781",
    draws={"iid"},
    trees="any",
    stop=stop,
    next=next,
    mixes=True,
)
