"""An exact prefix memo: a context that the target has been asked about before is answered without asking again.

Samples of one prompt, sweeps over temperatures and repeated requests come back to the same contexts. Logits are kept
under the whole text they follow, so the answer is the target's own, not a guess. A call computes the rows that are not
known, and of equal rows one. A row that was not computed falls behind; it catches up in the call that needs it next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace

from draftproof.draft import Tree
from draftproof.law import Array
from draftproof.models.base import Model, ModelFacts, Session, facts, forget


class Memo:
    """A target with a memory of `megabytes`; share one object between requests."""

    def __init__(self, model: Model, megabytes: int = 512) -> None:
        self.model = model
        self.name, self.vocabulary = model.name, model.vocabulary
        self.context, self.end_tokens, self.tokenizer = model.context, model.end_tokens, model.tokenizer
        self.known: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        self.most = max(megabytes * 2**20 // (4 * model.vocabulary), 1)  # rows of float32
        self.calls = 0  # of the target
        self.rows = 0  # computed in them

    @property
    def facts(self) -> ModelFacts:
        return facts(self.model)

    def session(self, rows: int, capacity: int, taps: Sequence[int] = ()) -> MemoSession:
        """`taps` are for a drafter that reads the target's hidden states row by row: then a call is whole or none."""
        host: Any = self.model
        inner = host.session(rows + 1, capacity, *([taps] if taps else []))  # one more row, to swap two
        return MemoSession(self, inner, rows, whole=bool(taps))


class MemoSession:
    """The target's session behind the memory.

    The target serves its first rows, so rows to be computed are brought to the front; `place` says where each row is.
    """

    speaks: Literal["logits", "law"] = "logits"

    def __init__(self, memo: Memo, session: Session, rows: int, whole: bool = False) -> None:
        self.memo, self.session, self.whole = memo, session, whole
        self.texts: list[tuple[int, ...]] = [()] * rows
        self.late: list[tuple[int, ...]] = [()] * rows  # committed tokens that the target's row has not been given
        self.place = list(range(rows))
        self.spare = rows
        self.asked: list[int] = []  # rows of the current step that the target computed, in its order

    def join(self, row: int, tokens: Sequence[int]) -> None:
        self.texts[row], self.late[row] = tuple(int(token) for token in tokens), ()
        self.session.join(self.place[row], tokens)

    def copy(self, source: int, target: int) -> None:
        self.texts[target], self.late[target] = self.texts[source], self.late[source]
        if source in self.asked and target not in self.asked:  # it will be committed with the others
            self._bring(target, len(self.asked))
            self.asked.append(target)
        self.session.copy(self.place[source], self.place[target])

    def extend(self, tree: Tree, tokens: Array, nodes: range) -> Array:
        known = self.memo.known
        keys = [
            [self.texts[b] + tuple(int(drawn[n]) for n in tree.path(node)) for node in nodes]
            for b, drawn in enumerate(tokens)
        ]
        if nodes.start == 0:
            self.forget()
            self.asked = self._unknown(keys)
            self._catch_up()
        if not self.asked:
            return self._recall(keys, {})
        chosen = np.asarray(tokens)[self.asked]
        logits = self.session.extend(tree, chosen, nodes)
        self.memo.calls += 1
        self.memo.rows += len(self.asked)
        fresh = {}
        for i, b in enumerate(self.asked):
            for j, key in enumerate(keys[b]):
                if -1 not in key:
                    fresh[key] = logits[i, j] + 0  # a copy: a view would hold the whole call's logits
        known.update(fresh)
        said = logits if len(self.asked) == len(keys) and self.asked == sorted(self.asked) else None
        said = self._recall(keys, fresh) if said is None else said
        while len(known) > self.memo.most:
            known.popitem(last=False)
        return said

    def commit(self, tree: Tree, tokens: Array, node: Sequence[int], token: Sequence[int]) -> None:
        said = []
        for b, last in enumerate(node):
            said.append((*(int(tokens[b][n]) for n in tree.path(int(last))), int(token[b])))
            self.texts[b] += said[b]
            if b not in self.asked and not self.whole:
                self.late[b] += said[b]
        if self.asked or self.whole:  # whole sessions hear of every step, computed or not
            order = list(range(len(node))) if self.whole else self.asked
            picked = [int(node[b]) for b in order], [int(token[b]) for b in order]
            self.session.commit(tree, np.asarray(tokens)[order], *picked)
        self.asked = []

    def forget(self) -> None:
        self.asked = []
        forget(self.session)

    def _unknown(self, keys: list[list[tuple[int, ...]]]) -> list[int]:
        """The rows to be computed: those that are behind come first, as only they have something to catch up with."""
        known, coming = self.memo.known, set()
        chosen = []
        for b, row in enumerate(keys):
            needed = {key for key in row if -1 not in key}
            if not all(key in known or key in coming for key in needed):
                chosen.append(b)
                coming |= needed
        if self.whole and chosen:
            chosen = list(range(len(keys)))
        return sorted(chosen, key=lambda b: not self.late[b])

    def _catch_up(self) -> None:
        """Bring the asked rows to the front, in order, and give them what was committed without them."""
        for i, b in enumerate(self.asked):
            self._bring(b, i)
        late = [self.late[b] for b in self.asked if self.late[b]]
        if late:
            chain = Tree.chain(max(map(len, late)) - 1)
            tokens = np.full((len(late), chain.size), -1, dtype=np.int64)
            for i, missed in enumerate(late):
                start = len(self.texts[self.asked[i]]) - len(missed) - 1
                tokens[i, : len(missed)] = self.texts[self.asked[i]][start:-1]
            self.session.commit(chain, tokens, [len(missed) - 1 for missed in late], [missed[-1] for missed in late])
        for b in self.asked:
            self.late[b] = ()

    def _bring(self, row: int, place: int) -> None:
        """Swap places so that the row is there."""
        old = self.place[row]
        if old == place:
            return
        other = self.place.index(place)
        for source, target in ((place, self.spare), (old, place), (self.spare, old)):
            self.session.copy(source, target)
        self.place[row], self.place[other] = place, old

    def _recall(self, keys: list[list[tuple[int, ...]]], fresh: dict[tuple[int, ...], Any]) -> Array:
        """[B, n, V] from memory; what follows a token that was not drawn is never looked at."""
        known = self.memo.known
        rows = []
        for row in keys:
            found = []
            for key in row:
                if key in known:
                    known.move_to_end(key)
                found.append(fresh[key] if key in fresh else known.get(key))
            some = next(one for one in found if one is not None)
            rows.append([some if one is None else one for one in found])
        xp = array_namespace(rows[0][0])
        return xp.stack([xp.stack(row, axis=0) for row in rows], axis=0)
