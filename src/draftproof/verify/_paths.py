"""Reduce several paths to one (Khisti et al., arXiv 2410.18234): a selector picks, block verification finishes."""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.draft import Draft, Selection, Tree
from draftproof.law import Array, one_hot, row
from draftproof.verify import block


def guesses(draft: Draft) -> Array:
    """[B, L, K]: the tokens of K separate paths of length L, level by level."""
    length = draft.tree.depth[-1]
    width = max(1, len(draft.tree.children(0)))
    return array_namespace(draft.tokens).reshape(draft.tokens[:, 1:], (draft.tokens.shape[0], length, width))


def chosen(draft: Draft, nodes: list[Array], laws: list[Array]) -> Selection:
    """The path through `nodes`, one [B] a level from node 0 on, picked with `laws`, one [B, V] a token."""
    xp = array_namespace(draft.tokens)
    tokens = xp.stack([row(draft.tokens, node) for node in nodes], axis=1)
    p = xp.stack([row(draft.p, node) for node in nodes], axis=1)
    q = xp.stack([*laws, draft.q[:, 0] * 0], axis=1)
    return Selection(xp.stack(nodes, axis=1), Draft(Tree.chain(len(laws)), tokens, q, p))


def stop(draft: Draft, selection: Selection) -> Array:
    """[B, N]: block verification's stop law of the selected path, on the nodes of the whole tree."""
    on_path = block.stop(selection.chain)
    law = draft.p[:, :, 0] * 0  # [B, N]
    for i in range(on_path.shape[1]):
        law = law + one_hot(selection.nodes[:, i], like=law) * on_path[:, i : i + 1]
    return law


def next(draft: Draft, selection: Selection, node: Array) -> Array:
    """[B, V]: block verification's next law after a node, as the selected path has it at that depth."""
    depth = node * 0
    for n, d in enumerate(draft.tree.depth):
        depth = array_namespace(node).where(node == n, d, depth)
    return block.next(selection.chain, depth)
