"""One-hot rule (Leviathan et al. 2211.17192 with a point-mass draft): any token, however it was found.

A guess x is kept with probability p(x), else p loses x and the next sibling is tried against what is left. It is the
token rule with all of q on the guess, so it holds for n-grams, argmax drafts and guesses of unknown law.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.draft import Draft
from draftproof.law import Array, at, one_hot, residual, row
from draftproof.verify import register


def _refuse(law: Array, token: Array) -> tuple[Array, Array]:
    """A guess's acceptance under `law`, and the law that is left when it is refused. No guess (-1) changes nothing."""
    point = one_hot(token, like=law)
    return at(law, token) * at(point, token), residual(law, point)


def stop(draft: Draft) -> Array:
    """[B, N]: top-down; a node's children are tried in order, each against what its elder siblings left."""
    tree = draft.tree
    left = [draft.p[:, 0, 0] * 0 + 1]  # probability to be at a node with all children tried so far refused
    law = {0: draft.p[:, 0]}
    for node in range(1, tree.size):
        parent = tree.parent[node]
        kept, law[parent] = _refuse(law[parent], draft.tokens[:, node])
        left.append(left[parent] * kept)
        left[parent] = left[parent] * (1 - kept)
        law[node] = draft.p[:, node]
    return array_namespace(draft.tokens).stack(left, axis=1)


def next(draft: Draft, node: Array) -> Array:
    """[B, V]: what is left of p after every guess was refused."""
    law = row(draft.p, node)
    for token in draft.guesses(node):
        _, law = _refuse(law, token)
    return law


register(
    "onehot",
    summary="keep a guess with probability p; for guesses without a law, such as n-grams",
    paper="2211.17192",
    draws={"iid", "distinct", "fixed", "top", "plan"},
    trees="any",
    stop=stop,
    next=next,
    mixes=True,
)
