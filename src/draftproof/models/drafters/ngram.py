"""Prompt lookup (Saxena 2023): draft what followed the last few tokens earlier in the text.

The drafter is the text itself: the longest recent n-gram that occurred earlier gives the next token. Its law is a point
mass, so every verifier is exact for it, and where nothing matches there is no guess.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal

import numpy as np

from draftproof.draft import Tree
from draftproof.law import Array
from draftproof.models.drafters.points import each_path, point_laws


class NGram:
    """The n-gram drafter for any target of this vocabulary size."""

    def __init__(self, vocabulary: int, longest: int = 4, shortest: int = 2) -> None:
        self.name = "ngram"
        self.vocabulary = vocabulary
        self.context: int | None = None
        self.end_tokens: tuple[int, ...] = ()
        self.tokenizer = None
        self.longest, self.shortest = longest, shortest

    def session(self, rows: int, capacity: int) -> NGramSession:
        return NGramSession(self, rows)


class NGramSession:
    """Each row's text, and an index from every n-gram in it to the token that last followed it."""

    speaks: Literal["logits", "law"] = "law"

    def __init__(self, model: NGram, rows: int) -> None:
        self.model = model
        self.texts: list[list[int]] = [[] for _ in range(rows)]
        self.followers: list[dict[tuple[int, ...], int]] = [{} for _ in range(rows)]

    def join(self, row: int, tokens: Sequence[int]) -> None:
        self.texts[row], self.followers[row] = [], {}
        self._append(row, tokens)

    def copy(self, source: int, target: int) -> None:
        self.texts[target] = list(self.texts[source])
        self.followers[target] = dict(self.followers[source])

    def extend(self, tree: Tree, tokens: Array, nodes: range) -> Array:
        return point_laws(self.guess(tree, tokens, nodes), self.model.vocabulary)

    def guess(self, tree: Tree, tokens: Array, nodes: range) -> np.ndarray:
        """The guessed tokens [B, len(nodes)]; -1 where there is no guess."""
        return each_path(tree, tokens, nodes, self._guess)

    def commit(self, tree: Tree, tokens: Array, node: Sequence[int], token: Sequence[int]) -> None:
        for b, last in enumerate(node):
            self._append(b, [*(int(tokens[b, n]) for n in tree.path(last)), int(token[b])])

    @property
    def bytes(self) -> int:
        """Approximate memory of the index."""
        return sum(sys.getsizeof(table) + sum(map(sys.getsizeof, table)) for table in self.followers)

    def _append(self, row: int, tokens: Sequence[int]) -> None:
        text, followers = self.texts[row], self.followers[row]
        for token in tokens:
            for size in range(self.model.shortest, self.model.longest + 1):
                if len(text) >= size:
                    followers[tuple(text[-size:])] = int(token)
            text.append(int(token))

    def _guess(self, row: int, path: Sequence[int]) -> int:
        recent = [*self.texts[row][-self.model.longest :], *path]
        for size in range(self.model.longest, self.model.shortest - 1, -1):
            if size <= len(recent) and tuple(recent[-size:]) in self.followers[row]:
                return self.followers[row][tuple(recent[-size:])]
        return -1
