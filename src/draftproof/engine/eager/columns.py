"""The tokens that the columns of a drafter's laws stand for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from array_api_compat import array_namespace

from draftproof.engine.eager.rows import beside
from draftproof.law import Array


class Columns:
    """All tokens, or those of a reduced vocabulary and behind them the others that a grammar made sure of."""

    def __init__(self, own: np.ndarray | None, size: int) -> None:
        """`own`: the ids of a reduced vocabulary, ascending; None where laws cover all `size` tokens."""
        self.own, self.vocabulary = own, size
        self._more: list[int] = []

    @property
    def size(self) -> int:
        return self.vocabulary if self.own is None else len(self.own) + len(self._more)

    @property
    def ids(self) -> np.ndarray | None:
        """The token of each column; None where it is the column's number."""
        return np.append(self.own, self._more).astype(np.int64) if self._more and self.own is not None else self.own

    def tokens(self, columns: np.ndarray) -> np.ndarray:
        """The tokens of columns; -1 stays."""
        ids = self.ids
        return columns if ids is None else np.where(columns < 0, -1, ids[columns])

    def certain(self, q: Array, known: np.ndarray) -> Array:
        """Laws [B, n, columns] with all the mass on the known tokens [B, n]; -1 leaves a law as it is."""
        places = [(b, i, self.place(int(known[b, i]))) for b, i in np.argwhere(known >= 0)]
        (q,) = self.filled_up([q])
        for b, i, place in places:
            q[b, i] = 0
            q[b, i, place] = 1
        return q

    def place(self, token: int) -> int:
        """The column of a token, which gets one if it has none."""
        if self.own is None:
            return token
        place = int(np.searchsorted(self.own, token))
        if place < len(self.own) and self.own[place] == token:
            return place
        if token not in self._more:
            self._more.append(token)
        return len(self.own) + self._more.index(token)

    def filled_up(self, laws: Sequence[Array]) -> list[Array]:
        """The laws with the columns that they lack, which are zero."""
        return [self._filled(q) if q.shape[-1] < self.size else q for q in laws]

    def _filled(self, q: Array) -> Array:
        xp = array_namespace(q)
        missing = xp.zeros((*q.shape[:-1], self.size - q.shape[-1]), dtype=q.dtype, device=q.device)
        return xp.concat([q, missing], axis=-1)

    def ascending(self, q: Array) -> tuple[Array, np.ndarray | None]:
        """The laws with columns in the order of token ids, and those ids."""
        ids = self.ids
        if not self._more or ids is None:
            return q, ids
        order = np.argsort(ids)
        return array_namespace(q).take(q, beside(order, q), axis=-1), ids[order]
