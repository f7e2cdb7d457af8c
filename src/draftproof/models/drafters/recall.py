"""Draft from the target's earlier logits: what it predicted after these tokens before is a good draft now.

The largest entries of the target's logits are stored under the few tokens before them. When the same tokens occur
again, in another request or at another temperature, the draft is drawn from those logits. The law drawn from is the
law verified, so outdated entries cost acceptance, never exactness. Memory is bounded; the least recently used go first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from draftproof.draft import Tree
from draftproof.errors import DraftproofError
from draftproof.law import Array


class Recall:
    """A drafter that learns from the target's own calls; requests that share the object share its entries."""

    def __init__(self, vocabulary: int, suffix: int = 3, kept: int = 64, entries: int = 100_000) -> None:
        if suffix < 1 or kept < 1 or entries < 1:
            raise DraftproofError(f"suffix, kept and entries must be positive, not {suffix}, {kept}, {entries}")
        self.name = "cache"
        self.vocabulary = vocabulary
        self.context: int | None = None
        self.end_tokens: tuple[int, ...] = ()
        self.tokenizer = None
        self.suffix, self.kept, self.entries = suffix, min(kept, vocabulary), entries
        self.known: OrderedDict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = OrderedDict()

    def session(self, rows: int, capacity: int) -> RecallSession:
        return RecallSession(self, rows)

    def remember(self, context: Sequence[int], logits: np.ndarray) -> None:
        """Store the largest entries of a row of logits [V] under the end of its context."""
        key = tuple(context[-self.suffix :])
        best = np.argpartition(logits, -self.kept)[-self.kept :]
        self.known[key] = (best.astype(np.int32), logits[best].astype(np.float32))
        self.known.move_to_end(key)
        if len(self.known) > self.entries:
            self.known.popitem(last=False)

    def recall(self, context: Sequence[int]) -> tuple[np.ndarray, np.ndarray] | None:
        """The tokens and logits last stored for the end of this context."""
        key = tuple(context[-self.suffix :])
        if key in self.known:
            self.known.move_to_end(key)
            return self.known[key]
        return None


class RecallSession:
    """Rows of text, each by its last few tokens."""

    speaks: Literal["logits", "law"] = "logits"

    def __init__(self, model: Recall, rows: int) -> None:
        self.model = model
        self.texts: list[list[int]] = [[] for _ in range(rows)]

    def join(self, row: int, tokens: Sequence[int]) -> None:
        self.texts[row] = [int(token) for token in tokens[-self.model.suffix :]]

    def copy(self, source: int, target: int) -> None:
        self.texts[target] = list(self.texts[source])

    def extend(self, tree: Tree, tokens: Array, nodes: range) -> Array:
        logits = np.full((len(tokens), len(nodes), self.model.vocabulary), -np.inf, dtype=np.float32)
        for b, drawn in enumerate(tokens):
            for i, node in enumerate(nodes):
                entry = self.model.recall(self._context(b, drawn, tree, node))
                if entry is not None:
                    logits[b, i, entry[0]] = entry[1]
        return logits

    def learn(self, tree: Tree, tokens: Array, logits: Array) -> None:
        """Store the target's logits [B, N, V] after the nodes of a draft; they may be on any device."""
        rows = logits.float().cpu().numpy() if hasattr(logits, "cpu") else np.asarray(logits, dtype=np.float32)
        finite = np.isfinite(rows.max(-1))  # rows with NaN or no allowed token are not stored
        for b, drawn in enumerate(tokens):
            for node in range(tree.size):
                if finite[b, node] and all(drawn[n] >= 0 for n in tree.path(node)):
                    self.model.remember(self._context(b, drawn, tree, node), rows[b, node])

    def commit(self, tree: Tree, tokens: Array, node: Sequence[int], token: Sequence[int]) -> None:
        for b, last in enumerate(node):
            accepted = [int(tokens[b][n]) for n in tree.path(int(last))]
            self.texts[b] = [*self.texts[b], *accepted, int(token[b])][-self.model.suffix :]

    @property
    def bytes(self) -> int:
        """Memory of all entries, of this session and others."""
        return sum(tokens.nbytes + logits.nbytes for tokens, logits in self.model.known.values())

    def _context(self, row: int, drawn: Any, tree: Tree, node: int) -> list[int]:
        return self.texts[row] + [int(drawn[n]) for n in tree.path(node)]
