"""Traversal verification (Weng et al., arXiv 2505.12398): a tree from its leaves up; siblings without replacement.

A node that holds weight w accepts something in its subtree with probability exactly w. Its children are tried in draw
order. With Q_j the law the j-th child was drawn from, taken = sum of S_j Q_j over the refused children, and left =
(w p - taken)+, a child x holds weight left(x) / (S Q(x)), where S = 1 - w + sum(left). When all are refused the node
itself is taken with sum(left) / S, and the next token follows `left`. On a chain this is block verification. A child
without children of its own is taken before its younger siblings' children are asked, so put the longest path first.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.draft import Draft
from draftproof.law import Array, at, capped_ratio, divide, normalise, one_hot, positive, residual, row
from draftproof.verify import register


def refuse(p: Array, q: Array, w: Array, tokens: list[Array]) -> tuple[list[Array], Array]:
    """A node's children one after another, for p, q [B, V] and w [B]: the weight [B] each holds, and `taken` [B, V]."""
    xp = array_namespace(p)
    weights, taken = [], q * 0
    for x in tokens:
        left = positive(w[:, None] * p - taken)
        share = 1 - w + xp.sum(left, axis=-1)  # S
        weight = capped_ratio(at(left, x), share * at(q, x))
        weights.append(xp.where(x < 0, weight * 0, weight))
        taken = xp.where((x < 0)[:, None], taken, taken + share[:, None] * q)  # a guess not drawn refuses nothing
        q = normalise(q * (1 - one_hot(x, like=q)))
    return weights, taken


def visit(draft: Draft) -> tuple[Array, Array]:
    """The weight w [B, N] of every node, and the chance h [B, N] that it is taken once all its children are refused."""
    xp = array_namespace(draft.tokens)
    tree = draft.tree
    weight, chance = [draft.p[:, 0, 0] * 0 + 1] * tree.size, []
    for node in range(tree.size):
        p, w, children = draft.p[:, node], weight[node], tree.children(node)
        held, taken = refuse(p, draft.q[:, node], w, [draft.tokens[:, child] for child in children])
        for child, kept in zip(children, held, strict=True):
            weight[child] = kept
        left = xp.sum(positive(w[:, None] * p - taken), axis=-1)
        chance.append(divide(left, left + (1 - w), otherwise=1))
    return xp.stack(weight, axis=1), xp.stack(chance, axis=1)


def upward(h: Array, home: Array) -> Array:
    """[B, N]: the law of the node that is taken when children go before parents, elder before younger siblings.

    `home` [B, N] is each node's parent. A node is reached when nothing was taken in the subtrees of its elder siblings
    and of its ancestors' elder siblings.
    """
    xp = array_namespace(h)
    above = [one_hot(home[:, node], like=h) for node in range(h.shape[1])]
    refused = h * 0 + 1  # probability that nothing is taken below a node
    nothing = [h[:, 0]] * h.shape[1]  # ... nor the node itself
    for node in reversed(range(1, h.shape[1])):
        nothing[node] = (1 - h[:, node]) * refused[:, node]
        refused = refused * (1 - above[node] * (1 - nothing[node])[:, None])
    reach = elder = h * 0 + 1
    for node in range(1, h.shape[1]):
        here = one_hot(home[:, node] * 0 + node, like=h)
        arrived = row(reach, home[:, node]) * row(elder, home[:, node])
        reach = xp.where(here > 0, arrived[:, None], reach)
        elder = elder * (1 - above[node] * (1 - nothing[node])[:, None])
    return reach * refused * h


def stop(draft: Draft) -> Array:
    """[B, N]: from the leaves up, each node with its chance h; node 0 takes what is left."""
    xp = array_namespace(draft.tokens)
    home = [draft.tokens[:, 0] * 0 + max(parent, 0) for parent in draft.tree.parent]
    return upward(visit(draft)[1], xp.stack(home, axis=1))


def next(draft: Draft, node: Array) -> Array:
    """[B, V]: what the node's children have left of w p."""
    w = row(visit(draft)[0], node)
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
