"""One-hot rule (Leviathan et al. 2211.17192 with a point-mass draft): for tokens drafted in any way.

A guess x is kept with probability p(x), else p loses x and the next sibling is tried against what is left. It is the
token rule with all of q on the guess, so it holds for n-grams, argmax drafts and guesses of unknown law.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.law import Array, at, one_hot, residual
from draftproof.verify import register
from draftproof.verify._topdown import top_down


def rule(p: Array, laws: list[Array], tokens: Array) -> tuple[Array, Array]:
    """Try the guesses in order; each is kept with what p has left for it, or is taken out of p."""
    xp = array_namespace(tokens)
    accept, refused = [], p[:, 0] * 0 + 1
    for k in range(tokens.shape[1]):
        point = one_hot(tokens[:, k], like=p)  # zero where there is no guess, which then changes nothing
        kept = at(p, tokens[:, k]) * at(point, tokens[:, k])
        accept.append(refused * kept)
        refused = refused * (1 - kept)
        p = residual(p, point)
    return xp.stack(accept, axis=1), p


stop, next = top_down(rule, several_laws=True)

register(
    "onehot",
    summary="accept a draft token with probability p; for drafts without a law, such as n-grams",
    paper="2211.17192",
    draws={"iid", "distinct", "fixed", "top", "plan"},
    trees="any",
    stop=stop,
    next=next,
    mixes=True,
)
