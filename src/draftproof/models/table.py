"""A model given by a function from context to law, for tests, examples and theory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from draftproof.draft import Tree
from draftproof.law import Array


class TableModel:
    """A model whose `rows(context)` is the law [V] of the next token after a tuple of tokens.

    >>> coin = TableModel(lambda context: [0.5, 0.5])
    >>> coin.vocabulary
    2
    """

    def __init__(self, rows: Callable[[tuple[int, ...]], Any], name: str = "table", context: int | None = None) -> None:
        self.rows = rows
        self.name = name
        self.context = context
        self.vocabulary = len(rows(()))
        self.end_tokens: tuple[int, ...] = ()
        self.tokenizer = None

    def session(self, rows: int, capacity: int) -> TableSession:
        return TableSession(self, rows)


class TableSession:
    """Rows of text whose next-token laws are looked up; logits are their logarithms."""

    speaks: Literal["logits", "law"] = "logits"

    def __init__(self, model: TableModel, rows: int) -> None:
        self.model = model
        self.texts: list[tuple[int, ...]] = [()] * rows  # without node 0

    def join(self, row: int, tokens: Sequence[int]) -> None:
        self.texts[row] = tuple(tokens[:-1])

    def copy(self, source: int, target: int) -> None:
        self.texts[target] = self.texts[source]

    def extend(self, tree: Tree, tokens: Array, nodes: range) -> Array:
        laws = []
        for text, drawn in zip(self.texts, tokens, strict=False):
            paths = [(*text, *(int(drawn[n]) for n in (0, *tree.path(node)))) for node in nodes]
            laws.append([np.asarray(self.model.rows(path), dtype=np.float64) for path in paths])
        with np.errstate(divide="ignore"):
            return np.log(np.array(laws))

    def commit(self, tree: Tree, tokens: Array, node: Sequence[int], token: Sequence[int]) -> None:
        for b, last in enumerate(node):
            self.texts[b] += tuple(int(tokens[b, n]) for n in (0, *tree.path(last)))
