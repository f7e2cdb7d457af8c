"""Recursive rejection without replacement (Jeon et al., arXiv 2402.14160; Sequoia, 2402.12374): no guess twice.

The token rule on one guess after another, in the order they were drawn; a refused guess leaves the target (p - q)+ and
is taken out of q, as it was when its successor was drawn. Any other order of the guesses is wrong.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.draws import without
from draftproof.law import Array, at, capped_ratio, residual
from draftproof.verify import register
from draftproof.verify._topdown import top_down


def rule(p: Array, laws: list[Array], tokens: Array) -> tuple[Array, Array]:
    """Try the guesses in draw order; p becomes what is left of it, q loses each guess."""
    xp = array_namespace(tokens)
    accept, refused, q = [], p[:, 0] * 0 + 1, laws[0]
    for k in range(tokens.shape[1]):
        drawn = tokens[:, k] >= 0
        ratio = capped_ratio(at(p, tokens[:, k]), at(q, tokens[:, k]))
        kept = xp.where(drawn, ratio, ratio * 0)
        accept.append(refused * kept)
        refused = refused * (1 - kept)
        p = xp.where(drawn[:, None], residual(p, q), p)
        q = without(q, tokens[:, k])
    return xp.stack(accept, axis=1), p


stop, next = top_down(rule)

register(
    "recursive_distinct",
    summary="guesses one after another by the token rule, each taken out of the draft's law before the next",
    paper="2402.14160",
    draws={"distinct"},
    trees="any",
    stop=stop,
    next=next,
)
