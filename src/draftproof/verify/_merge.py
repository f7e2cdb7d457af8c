"""Merge equal paths of a draft into one context: a candidate after one of them is one after all of them."""

from __future__ import annotations

from typing import NamedTuple

from array_api_compat import array_namespace

from draftproof.draft import Draft
from draftproof.law import Array, row


class Contexts(NamedTuple):
    """Which nodes of a draft stand for the same text, as node numbers [B, N]."""

    first: Array  # the earliest node with the same path; the node itself where it has no elder twin
    home: Array  # the earliest node with the parent's path: where the node's token was guessed
    rows: Array  # a node whose rows of p and q hold for this one: a twin's, where only the twin has children


class Guesses(NamedTuple):
    """What was guessed after one context of each draft, in draw order."""

    nodes: Array  # [B, K] node 0 where there are fewer
    tokens: Array  # [B, K] -1 where there are fewer
    rows: Array  # [B] a node whose rows of p and q hold there


def contexts(draft: Draft) -> Contexts:
    """Level by level: nodes are twins when their parents are and their tokens agree."""
    xp = array_namespace(draft.tokens)
    tree, tokens = draft.tree, draft.tokens
    if tree.is_chain:
        return apart(draft)
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


def apart(draft: Draft) -> Contexts:
    """Every node its own context, whatever its path: for guesses whose law rests on who their siblings are."""
    xp = array_namespace(draft.tokens)
    zero = draft.tokens[:, 0] * 0
    ids = xp.stack([zero + node for node in range(draft.tree.size)], axis=1)
    home = xp.stack([zero + max(parent, 0) for parent in draft.tree.parent], axis=1)
    return Contexts(ids, home, ids)


def guesses(draft: Draft, merged: Contexts, node: Array) -> Guesses:
    """The guesses after the context at each node [B], none where it repeats an earlier path; K is the most of any."""
    xp = array_namespace(draft.tokens)
    here = (merged.home == node[:, None])[:, 1:] & (draft.tokens >= 0)[:, 1:]
    if not xp.any(here):
        return Guesses(draft.tokens[:, :0], draft.tokens[:, :0], node)
    here = xp.astype(here, xp.int64)
    most = int(xp.max(xp.sum(here, axis=1)))
    order = xp.argsort(-here, axis=1, stable=True)[:, :most]
    drawn = xp.take_along_axis(here, order, axis=1) > 0
    nodes = xp.where(drawn, order + 1, order * 0)
    tokens = xp.take_along_axis(draft.tokens, nodes, axis=1)
    return Guesses(nodes, xp.where(drawn, tokens, tokens * 0 - 1), row(merged.rows, node))
