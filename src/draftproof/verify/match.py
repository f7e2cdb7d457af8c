"""Match rule (SpecInfer's naive sampling, arXiv 2305.09781): draw from the target, go on where a guess agrees.

Exact for guesses made in any way at all, on any tree, because the emitted token is a draw from p whatever was guessed;
optimal for guesses that are not random.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.draft import Draft
from draftproof.law import Array, at, normalise, one_hot, positive, row
from draftproof.verify import register


def stop(draft: Draft) -> Array:
    """[B, N]: reach of a node times the mass its children leave; of equal siblings the first takes it all."""
    xp = array_namespace(draft.tokens)
    tree, tokens = draft.tree, draft.tokens
    one = draft.p[:, 0, 0] * 0 + 1
    reach, left = [one], [one] * tree.size
    for node in range(1, tree.size):
        parent = tree.parent[node]
        fresh = tokens[:, node] >= 0
        for sibling in tree.children(parent):
            if sibling < node:
                fresh = fresh & (tokens[:, sibling] != tokens[:, node])
        mass = at(draft.p[:, parent], tokens[:, node])
        mass = xp.where(fresh, mass, mass * 0)
        reach.append(reach[parent] * mass)
        left[parent] = left[parent] - mass
    return xp.stack([r * positive(rest) for r, rest in zip(reach, left, strict=True)], axis=1)


def next(draft: Draft, node: Array) -> Array:
    """[B, V]: p without the guessed tokens. If they hold all of p, stopping here has probability zero: p stands in."""
    xp = array_namespace(draft.tokens)
    p = row(draft.p, node)
    rest = p
    for token in draft.guesses(node):
        rest = rest * (1 - one_hot(token, like=rest))
    return normalise(xp.where(xp.sum(rest, axis=-1, keepdims=True) > 0, rest, p))


register(
    "match",
    summary="draw from the target, continue where a guess agrees; needs no draft law, optimal for fixed guesses",
    paper="2305.09781",
    draws={"iid", "distinct", "fixed", "top", "plan"},
    trees="any",
    stop=stop,
    next=next,
    mixes=True,
)
