"""Cache the target's logits by exact prefix, so that a context is computed only once.

Samples of one prompt, sweeps over temperatures and repeated requests return to the same contexts. Logits are stored
under the whole text before them, so they are the target's own, not a guess. A call computes the rows that are not
cached, and of equal rows one. A row that was not computed falls behind, and catches up in the next call that needs it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace

from draftproof.draft import Tree
from draftproof.law import Array
from draftproof.models.base import Model, ModelFacts, Session, default_sampling, facts, forget
from draftproof.sampling import Sampling


class Memo:
    """A target with a logits cache of `megabytes`; share one object between requests."""

    def __init__(self, model: Model, megabytes: int = 512) -> None:
        self.model = model
        self.name, self.vocabulary = model.name, model.vocabulary
        self.context, self.end_tokens, self.tokenizer = model.context, model.end_tokens, model.tokenizer
        self.cached: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        self.most = max(megabytes * 2**20 // (4 * model.vocabulary), 1)  # rows of float32
        self.calls = 0  # of the target
        self.rows = 0  # computed in them

    @property
    def facts(self) -> ModelFacts:
        return facts(self.model)

    @property
    def default_sampling(self) -> Sampling:
        return default_sampling(self.model)

    def session(self, rows: int, capacity: int, taps: Sequence[int] = ()) -> MemoSession:
        """Open a session. With `taps` (hidden states for a drafter) a call computes all rows or none."""
        host: Any = self.model
        inner = host.session(rows + 1, capacity, *([taps] if taps else []))  # one more row, to swap two
        return MemoSession(self, inner, rows, whole=bool(taps))


class MemoSession:
    """The target's session behind the cache.

    The target computes its first rows, so rows to compute are moved to the front; `place` says where each row is.
    """

    speaks: Literal["logits", "law"] = "logits"

    def __init__(self, memo: Memo, session: Session, rows: int, whole: bool = False) -> None:
        self.memo, self.session, self.whole = memo, session, whole
        self.texts: list[tuple[int, ...]] = [()] * rows
        self.late: list[tuple[int, ...]] = [()] * rows  # committed tokens that the target's row has not read
        self.place = list(range(rows))
        self.spare = rows
        self.computed: list[int] = []  # rows of the current step that the target computed, in its order

    def join(self, row: int, tokens: Sequence[int]) -> None:
        self.texts[row], self.late[row] = tuple(int(token) for token in tokens), ()
        self.session.join(self.place[row], tokens)

    def copy(self, source: int, target: int) -> None:
        self.texts[target], self.late[target] = self.texts[source], self.late[source]
        if source in self.computed and target not in self.computed:  # it is committed with the others
            self._bring(target, len(self.computed))
            self.computed.append(target)
        self.session.copy(self.place[source], self.place[target])

    def extend(self, tree: Tree, tokens: Array, nodes: range) -> Array:
        cached = self.memo.cached
        keys = [
            [self.texts[b] + tuple(int(drawn[n]) for n in tree.path(node)) for node in nodes]
            for b, drawn in enumerate(tokens)
        ]
        if nodes.start == 0:
            self.forget()
            self.computed = self._unknown(keys)
            self._catch_up()
        if not self.computed:
            return self._recall(keys, {})
        chosen = np.asarray(tokens)[self.computed]
        logits = self.session.extend(tree, chosen, nodes)
        self.memo.calls += 1
        self.memo.rows += len(self.computed)
        fresh = {}
        for i, b in enumerate(self.computed):
            for j, key in enumerate(keys[b]):
                if -1 not in key:
                    fresh[key] = logits[i, j] + 0  # a copy: a view would hold the whole call's logits
        cached.update(fresh)
        result = logits if len(self.computed) == len(keys) and self.computed == sorted(self.computed) else None
        result = self._recall(keys, fresh) if result is None else result
        while len(cached) > self.memo.most:
            cached.popitem(last=False)
        return result

    def commit(self, tree: Tree, tokens: Array, node: Sequence[int], token: Sequence[int]) -> None:
        added = []
        for b, last in enumerate(node):
            added.append((*(int(tokens[b][n]) for n in tree.path(int(last))), int(token[b])))
            self.texts[b] += added[b]
            if b not in self.computed and not self.whole:
                self.late[b] += added[b]
        if self.computed or self.whole:  # whole sessions commit every step, computed or not
            order = list(range(len(node))) if self.whole else self.computed
            picked = [int(node[b]) for b in order], [int(token[b]) for b in order]
            self.session.commit(tree, np.asarray(tokens)[order], *picked)
        self.computed = []

    def forget(self) -> None:
        self.computed = []
        forget(self.session)

    def _unknown(self, keys: list[list[tuple[int, ...]]]) -> list[int]:
        """The rows to compute; those that are behind come first, because only they have tokens to catch up with."""
        cached, coming = self.memo.cached, set()
        chosen = []
        for b, row in enumerate(keys):
            needed = {key for key in row if -1 not in key}
            if not all(key in cached or key in coming for key in needed):
                chosen.append(b)
                coming |= needed
        if self.whole and chosen:
            chosen = list(range(len(keys)))
        return sorted(chosen, key=lambda b: not self.late[b])

    def _catch_up(self) -> None:
        """Move the rows to compute to the front, in order, and commit what they have missed."""
        for i, b in enumerate(self.computed):
            self._bring(b, i)
        late = [self.late[b] for b in self.computed if self.late[b]]
        if late:
            chain = Tree.chain(max(map(len, late)) - 1)
            tokens = np.full((len(late), chain.size), -1, dtype=np.int64)
            for i, missed in enumerate(late):
                start = len(self.texts[self.computed[i]]) - len(missed) - 1
                tokens[i, : len(missed)] = self.texts[self.computed[i]][start:-1]
            self.session.commit(chain, tokens, [len(missed) - 1 for missed in late], [missed[-1] for missed in late])
        for b in self.computed:
            self.late[b] = ()

    def _bring(self, row: int, place: int) -> None:
        """Swap rows so that the row is at this place."""
        old = self.place[row]
        if old == place:
            return
        displaced = self.place.index(place)
        for source, target in ((place, self.spare), (old, place), (self.spare, old)):
            self.session.copy(source, target)
        self.place[row], self.place[displaced] = place, old

    def _recall(self, keys: list[list[tuple[int, ...]]], fresh: dict[tuple[int, ...], Any]) -> Array:
        """The logits [B, n, V] from the cache; after a token that was not drawn any row will do."""
        cached = self.memo.cached
        rows = []
        for row in keys:
            logits = []
            for key in row:
                if key in cached:
                    cached.move_to_end(key)
                logits.append(fresh[key] if key in fresh else cached.get(key))
            some = next(entry for entry in logits if entry is not None)
            rows.append([some if entry is None else entry for entry in logits])
        xp = array_namespace(rows[0][0])
        return xp.stack([xp.stack(row, axis=0) for row in rows], axis=0)
