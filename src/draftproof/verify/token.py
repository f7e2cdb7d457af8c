"""Token verification (Leviathan et al. 2211.17192, Chen et al. 2302.01318): each token alone, left to right.

Token x ~ q is kept with probability min(1, p(x) / q(x)); at the first that is not, the emitted token is drawn from
(p - q)+. Kept mass min(p, q) plus residual mass (p - q)+ is p.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.draft import Draft
from draftproof.law import Array, at, capped_ratio, residual, row
from draftproof.verify import register


def stop(draft: Draft) -> Array:
    """[B, N]: accept node i with min(1, p/q), stop at the first rejection."""
    p, q, tokens = draft.p, draft.q, draft.tokens
    xp = array_namespace(tokens)
    accept = capped_ratio(at(p[:, :-1], tokens[:, 1:]), at(q[:, :-1], tokens[:, 1:]))  # [B, N-1]
    reach, laws = p[:, 0, 0] * 0 + 1, []
    for i in range(accept.shape[1]):
        laws.append(reach * (1 - accept[:, i]))
        reach = reach * accept[:, i]
    return xp.stack([*laws, reach], axis=1)


def next(draft: Draft, node: Array) -> Array:
    """[B, V]: what p holds in excess of q; p itself after the last node, where q is zero."""
    return residual(row(draft.p, node), row(draft.q, node))


register(
    "token",
    summary="each token alone, kept with min(1, p/q); optimal for one draft token",
    paper="2211.17192",
    draws={"iid"},
    trees="chain",
    stop=stop,
    next=next,
)
