"""Drafters whose every draft token is certain, such as one that looks phrases up: their laws are point masses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from draftproof.draft import Tree
from draftproof.law import Array


def point_laws(tokens: np.ndarray, vocabulary: int) -> np.ndarray:
    """The laws [B, n, V] of draft tokens [B, n]; zero rows where there is none (-1).

    >>> point_laws(np.array([[1, -1]]), 3).tolist()
    [[[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]]
    """
    laws = np.zeros((*tokens.shape, vocabulary), dtype=np.float32)
    rows, places = np.nonzero(tokens >= 0)
    laws[rows, places, tokens[rows, places]] = 1.0
    return laws


def each_path(tree: Tree, tokens: Array, nodes: range, guess: Callable[[int, Sequence[int]], int]) -> np.ndarray:
    """The token [B, len(nodes)] that `guess(row, path)` drafts after each node; -1 below one that was not drawn."""
    guesses = np.full((len(tokens), len(nodes)), -1, dtype=np.int64)
    for b, drawn in enumerate(tokens):
        for i, node in enumerate(nodes):
            path = [int(drawn[n]) for n in tree.path(node)]
            if -1 not in path:
                guesses[b, i] = guess(b, path)
    return guesses
