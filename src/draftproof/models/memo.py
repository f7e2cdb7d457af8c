"""An exact prefix memo: a context that the target has been asked about before is answered without asking again.

Samples of one prompt, sweeps over temperatures and repeated requests come back to the same contexts. Logits are kept
under the whole text they follow, so the answer is the target's own, not a guess. A session that is not asked falls
behind and catches up with the tokens it missed in its next call. A call for several rows is saved if all are known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal

from array_api_compat import array_namespace

from draftproof.draft import Tree
from draftproof.law import Array
from draftproof.models.session import Model, Session


class Memo:
    """A target with a memory of `megabytes`; share one object between requests."""

    def __init__(self, model: Model, megabytes: int = 512) -> None:
        self.model = model
        self.name, self.vocabulary = model.name, model.vocabulary
        self.context, self.end_tokens, self.tokenizer = model.context, model.end_tokens, model.tokenizer
        self.known: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        self.most = max(megabytes * 2**20 // (4 * model.vocabulary), 1)  # rows of float32
        self.calls = 0  # of the target

    def session(self, rows: int, capacity: int, *taps: Sequence[int]) -> MemoSession:
        """`taps`: hidden states that a drafter reads in the target's session."""
        model: Any = self.model
        return MemoSession(self, model.session(rows, capacity, *taps), rows)


class MemoSession:
    """The target's session behind the memory."""

    speaks: Literal["logits", "law"] = "logits"

    def __init__(self, memo: Memo, session: Session, rows: int) -> None:
        self.memo, self.session = memo, session
        self.texts: list[tuple[int, ...]] = [()] * rows

    def join(self, row: int, tokens: Sequence[int]) -> None:
        self.texts[row] = tuple(int(token) for token in tokens)
        self.session.join(row, tokens)

    def copy(self, source: int, target: int) -> None:
        self.texts[target] = self.texts[source]
        self.session.copy(source, target)

    def extend(self, tree: Tree, tokens: Array, nodes: range) -> Array:
        known = self.memo.known
        keys = [
            [self.texts[b] + tuple(int(drawn[n]) for n in tree.path(node)) for node in nodes]
            for b, drawn in enumerate(tokens)
        ]
        if nodes.start == 0 and all(key in known for row in keys for key in row):
            rows = []
            for row in keys:
                for key in row:
                    known.move_to_end(key)
                rows.append([known[key] for key in row])
            xp = array_namespace(rows[0][0])
            return xp.stack([xp.stack(row, axis=0) for row in rows], axis=0)
        logits = self.session.extend(tree, tokens, nodes)
        self.memo.calls += 1
        for b, row in enumerate(keys):
            for i, key in enumerate(row):
                if -1 not in key:
                    known[key] = logits[b, i] + 0  # a copy: a view would hold the whole call's logits
        while len(known) > self.memo.most:
            known.popitem(last=False)
        return logits

    def commit(self, tree: Tree, tokens: Array, node: Sequence[int], token: Sequence[int]) -> None:
        for b, last in enumerate(node):
            self.texts[b] += (*(int(tokens[b][n]) for n in tree.path(int(last))), int(token[b]))
        self.session.commit(tree, tokens, node, token)
