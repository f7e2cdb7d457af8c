"""Equal paths of a draft are one context: guesses made after any of them are all guesses after the same text."""

from __future__ import annotations

from typing import NamedTuple

from array_api_compat import array_namespace

from draftproof.draft import Draft
from draftproof.law import Array


class Contexts(NamedTuple):
    """Which nodes of a draft stand for the same text, as node numbers [B, N]."""

    first: Array  # the earliest node with the same path; the node itself where it has no elder twin
    home: Array  # the earliest node with the parent's path: where the node's token was guessed
    rows: Array  # a node whose rows of p and q hold for this one: a twin's, where only the twin has children


def contexts(draft: Draft) -> Contexts:
    """Level by level: nodes are twins when their parents are and their tokens agree."""
    xp = array_namespace(draft.tokens)
    tree, tokens = draft.tree, draft.tokens
    first = home = tokens[:, :1] * 0
    for level in tree.levels[1:]:
        above = xp.stack([first[:, tree.parent[node]] for node in level], axis=1)  # [B, W]
        guess = tokens[:, level.start : level.stop]
        same = (above[:, :, None] == above[:, None, :]) & (guess[:, :, None] == guess[:, None, :])
        ids = xp.stack([first[:, 0] * 0 + node for node in level], axis=1)
        first = xp.concat([first, xp.min(xp.where(same, ids[:, None, :], tree.size), axis=-1)], axis=1)
        home = xp.concat([home, above], axis=1)
    rows = ids = xp.stack([first[:, 0] * 0 + node for node in range(tree.size)], axis=1)
    for node in range(1, tree.size):
        has_child = (ids == home[:, node : node + 1]) & (tokens[:, node : node + 1] >= 0)
        rows = xp.where(has_child, tree.parent[node], rows)
    return Contexts(first, home, rows)
