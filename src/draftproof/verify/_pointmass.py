"""The one-hot rule on a chain of deterministic draft tokens, such as a repeated phrase, without writing out q.

All of q lies on the guess, so every exact rule comes to the same: keep it with probability p, else take it out of p.
Plain sampling is the chain of no guesses. Samples that share such guesses stay independent: they contain no noise.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.draft import Draft
from draftproof.law import Array, at, row
from draftproof.rule import Verifier


def stop(draft: Draft) -> Array:
    """[B, N]: node i is kept with p of its token."""
    p, tokens = draft.p, draft.tokens
    if draft.tree.size == 1:
        return p[:, :, 0] * 0 + 1
    xp = array_namespace(p)
    keep = at(p[:, :-1], tokens[:, 1:])
    keep = xp.where(tokens[:, 1:] >= 0, keep, keep * 0)
    reach, laws = p[:, 0, 0] * 0 + 1, []
    for i in range(keep.shape[1]):
        laws.append(reach * (1 - keep[:, i]))
        reach = reach * keep[:, i]
    return xp.stack([*laws, reach], axis=1)


def next(draft: Draft, node: Array) -> Array:
    """[B, V]: p without the refused guess; not normalised, because sampling does not need it.

    Some mass is left: were all of p on the guess, it would have been kept.
    """
    last = draft.tree.size - 1
    if last == 0:
        return draft.p[:, 0]
    left = row(draft.p, node)  # a copy
    for b, n in enumerate(node.tolist()):
        refused = int(draft.tokens[b, n + 1]) if n < last else -1
        if refused >= 0:
            left[b, refused] = 0
    return left


POINT_MASS = Verifier(
    name="certain",
    summary="draft tokens that are not drawn",
    paper="2211.17192",
    draws=frozenset({"fixed"}),
    trees="chain",
    stop=stop,
    next=next,
)
