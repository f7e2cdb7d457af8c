"""Traversal verification (Weng et al., arXiv 2505.12398) for siblings drawn independently; equal paths are one context.

As `traversal`, but every child of a context is drawn from the same q, so what its refused children have taken is a
multiple of q: one number instead of a row. An equal sibling is refused for certain and still takes its share.
"""

from __future__ import annotations

from typing import NamedTuple

from array_api_compat import array_namespace

from draftproof.draft import Draft
from draftproof.law import Array, at, capped_ratio, divide, one_hot, positive, residual, row
from draftproof.verify import register
from draftproof.verify._merge import contexts
from draftproof.verify.traversal import upward


class Visit(NamedTuple):
    """What a traversal knows of each node, as [B, N]; a node that repeats an earlier path has weight 0."""

    weight: Array  # w, the probability that something in the node's subtree is accepted once it is visited
    taken: Array  # multiple of q that the node's refused children have taken from w p
    left: Array  # sum (w p - taken q)+


def visit(draft: Draft) -> Visit:
    """Every node in order. Its context may be an earlier node than its parent, and differs from draft to draft."""
    xp = array_namespace(draft.tokens)
    tree, merged = draft.tree, contexts(draft)
    start = xp.stack([draft.p[:, 0, 0] * 0 + (1 if node == 0 else 0) for node in range(tree.size)], axis=1)
    weight, taken, left = start, start * 0, start
    for node in range(1, tree.size):
        parent, x = tree.parent[node], draft.tokens[:, node]
        home = merged.home[:, node]
        p, q = draft.p[:, parent], draft.q[:, parent]
        w, c = row(weight, home), row(taken, home)
        share = 1 - w + row(left, home)  # S
        kept = capped_ratio(positive(w * at(p, x) - c * at(q, x)), share * at(q, x))
        drawn = x >= 0
        kept = xp.where(drawn & (merged.first[:, node] == node), kept, kept * 0)
        c = xp.where(drawn, c + share, c)
        rest = xp.sum(positive(w[:, None] * p - c[:, None] * q), axis=-1)

        here, above = one_hot(x * 0 + node, like=start), one_hot(home, like=start)
        weight, left = weight + here * kept[:, None], left + here * kept[:, None]
        taken = xp.where(above > 0, c[:, None], taken)
        left = xp.where(above > 0, rest[:, None], left)
    return Visit(weight, taken, left)


def stop(draft: Draft) -> Array:
    """[B, N]: from the leaves up, each node with its chance; a node that repeats an earlier path has none."""
    visited = visit(draft)
    return upward(divide(visited.left, visited.left + (1 - visited.weight), otherwise=1), contexts(draft).home)


def next(draft: Draft, node: Array) -> Array:
    """[B, V]: what the node's children have left of w p."""
    visited = visit(draft)
    w, c, rows = row(visited.weight, node), row(visited.taken, node), row(contexts(draft).rows, node)
    return residual(w[:, None] * row(draft.p, rows), c[:, None] * row(draft.q, rows))


register(
    "traversal_iid",
    summary="any tree from its leaves up; siblings drawn independently, equal paths merged",
    paper="2505.12398",
    draws={"iid"},
    trees="any",
    stop=stop,
    next=next,
    dominates={"token"},
)
