"""Distributions seen before as drafter: what the target said after these tokens is a good guess of what it will say.

While text is written, the target's logits are kept (their largest entries) under the few tokens they followed. When the
same tokens come again, in another request or at another temperature, they are drafted from. The law drawn from is the
law verified, so old news costs acceptance, never exactness. Memory is bounded; what was not used longest goes first.
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
    """A drafter that learns from the target's own calls; share one object between requests to share what it knows."""

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
        """Keep the largest entries of a row of logits [V] under the end of its context."""
        key = tuple(context[-self.suffix :])
        best = np.argpartition(logits, -self.kept)[-self.kept :]
        self.known[key] = (best.astype(np.int32), logits[best].astype(np.float32))
        self.known.move_to_end(key)
        if len(self.known) > self.entries:
            self.known.popitem(last=False)

    def recall(self, context: Sequence[int]) -> tuple[np.ndarray, np.ndarray] | None:
        """Tokens and logits last seen after the end of this context."""
        key = tuple(context[-self.suffix :])
        if key in self.known:
            self.known.move_to_end(key)
            return self.known[key]
        return None


class RecallSession:
    """Rows of text and what is known about their ends."""

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
                found = self.model.recall(self._context(b, drawn, tree, node))
                if found is not None:
                    logits[b, i, found[0]] = found[1]
        return logits

    def learn(self, tree: Tree, tokens: Array, logits: Array) -> None:
        """The target's logits [B, N, V] after the nodes of a draft, on the device they are on."""
        rows = logits.float().cpu().numpy() if hasattr(logits, "cpu") else np.asarray(logits, dtype=np.float32)
        sound = np.isfinite(rows.max(-1))  # of other rows no law is made, so neither is a guess
        for b, drawn in enumerate(tokens):
            for node in range(tree.size):
                if sound[b, node] and all(drawn[n] >= 0 for n in tree.path(node)):
                    self.model.remember(self._context(b, drawn, tree, node), rows[b, node])

    def commit(self, tree: Tree, tokens: Array, node: Sequence[int], token: Sequence[int]) -> None:
        for b, last in enumerate(node):
            kept = [int(tokens[b][n]) for n in tree.path(int(last))]
            self.texts[b] = [*self.texts[b], *kept, int(token[b])][-self.model.suffix :]

    @property
    def bytes(self) -> int:
        """Memory of all that is kept, for this session and others."""
        return sum(tokens.nbytes + logits.nbytes for tokens, logits in self.model.known.values())

    def _context(self, row: int, drawn: Any, tree: Tree, node: int) -> list[int]:
        return self.texts[row] + [int(drawn[n]) for n in tree.path(node)]
