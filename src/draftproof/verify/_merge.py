"""Equal paths of a draft are one context: guesses made after any of them are all guesses after the same text."""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.draft import Draft
from draftproof.law import Array


def first(draft: Draft) -> Array:
    """[B, N]: the earliest node that stands for the same text as each node; the node itself where it is alone."""
    xp = array_namespace(draft.tokens)
    tree, tokens = draft.tree, draft.tokens
    found = tokens[:, :1] * 0
    for level in tree.levels[1:]:
        parents = xp.stack([found[:, tree.parent[node]] for node in level], axis=1)  # [B, W]
        guess = tokens[:, level.start : level.stop]
        same = (parents[:, :, None] == parents[:, None, :]) & (guess[:, :, None] == guess[:, None, :])
        ids = xp.stack([found[:, 0] * 0 + node for node in level], axis=1)
        found = xp.concat([found, xp.min(xp.where(same, ids[:, None, :], tree.size), axis=-1)], axis=1)
    return found
