"""Traversal verification (Weng et al., arXiv 2505.12398): a tree from its leaves up; siblings without replacement.

A node that holds weight w accepts something in its subtree with probability exactly w. Its children are tried in draw
order. With Q_j the law the j-th child was drawn from, taken = sum of S_j Q_j over the refused children, and left =
(w p - taken)+, a child x holds weight left(x) / (S Q(x)), where S = 1 - w + sum(left). When all are refused the node
itself is taken with sum(left) / S, and the next token follows `left`. On a chain this is block verification.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.draft import Draft
from draftproof.law import Array, at, divide, normalise, one_hot, positive, residual, row
from draftproof.verify import register


def refuse(p: Array, q: Array, w: Array, tokens: list[Array]) -> tuple[list[Array], Array]:
    """A node's children one after another, for p, q [B, V] and w [B]: the weight [B] each holds, and `taken` [B, V]."""
    xp = array_namespace(p)
    weights, taken = [], q * 0
    for x in tokens:
        left = positive(w[:, None] * p - taken)
        share = 1 - w + xp.sum(left, axis=-1)  # S
        weight = divide(at(left, x), share * at(q, x))
        weight = xp.where(weight < 1, weight, weight * 0 + 1)
        weights.append(xp.where(x < 0, weight * 0, weight))
        taken = xp.where((x < 0)[:, None], taken, taken + share[:, None] * q)  # a guess not drawn refuses nothing
        q = normalise(q * (1 - one_hot(x, like=q)))
    return weights, taken


def _visit(draft: Draft) -> tuple[list[Array], Array]:
    """The weight [B] every node holds when it is visited, and the law [B, N] of the last accepted node."""
    xp = array_namespace(draft.tokens)
    tree = draft.tree
    one = draft.p[:, 0, 0] * 0 + 1
    weight, reach, law = [one] * tree.size, [one] * tree.size, []
    for node in range(tree.size):
        p, q, w, untaken = draft.p[:, node], draft.q[:, node], weight[node], reach[node]
        children = tree.children(node)
        held, taken = refuse(p, q, w, [draft.tokens[:, child] for child in children])
        for child, kept in zip(children, held, strict=True):
            weight[child], reach[child] = kept, untaken
            untaken = untaken * (1 - kept)  # the whole subtree of a child fails with 1 - its weight
        left = xp.sum(positive(w[:, None] * p - taken), axis=-1)
        law.append(untaken * divide(left, left + 1 - w, otherwise=1))
    return weight, xp.stack(law, axis=1)


def stop(draft: Draft) -> Array:
    """[B, N]: a node is taken when it is visited, all its children are refused, and its own turn succeeds."""
    return _visit(draft)[1]


def next(draft: Draft, node: Array) -> Array:
    """[B, V]: what the node's children have left of w p."""
    weight, _ = _visit(draft)
    w = row(array_namespace(node).stack(weight, axis=1), node)
    p = row(draft.p, node)
    _, taken = refuse(p, row(draft.q, node), w, draft.guesses(node))
    return residual(w[:, None] * p, taken)


register(
    "traversal",
    summary="any tree from its leaves up; siblings drawn without replacement",
    paper="2505.12398",
    draws={"distinct"},
    trees="any",
    stop=stop,
    next=next,
)
