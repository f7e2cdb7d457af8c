"""Draft models with another tokenizer (Timor et al., arXiv 2502.05202): draft only tokens that both models have.

The drafter's scores are restricted to the shared tokens before anything is drawn, so the law drawn from is the law
verified and every rule stays exact. (Drawing first and dropping what the target lacks would not be.) The drafter reads
the text in its own tokens: shared tokens are translated one by one, and where the target emits a token that the drafter
lacks, the text is tokenised again as bytes, back to where the two tokenisations agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from draftproof.draft import Tree
from draftproof.errors import DraftproofError
from draftproof.law import Array
from draftproof.models.base import Model, check_drafts_fit, forget, prefill, rejoin
from draftproof.models.drafters.token_bytes import Reader, TokenBytes, common, outgrown, room, shorten

FEWEST = 20  # at least one token in so many must be shared: with fewer a drafter is seldom right


def fit(target: Model, draft: Model) -> Model:
    """The drafter itself if it has the target's vocabulary, else a translation of it."""
    check_drafts_fit(target)
    check_drafts_fit(draft, "draft")
    if target.tokenizer is None or draft.tokenizer is None:
        if target.vocabulary != draft.vocabulary:
            raise DraftproofError(
                f"draft {draft.name!r} has {draft.vocabulary} tokens but target {target.name!r} has "
                f"{target.vocabulary}, and there is no tokenizer to match them: use --draft ngram"
            )
        return draft
    if target.tokenizer.get_vocab() == draft.tokenizer.get_vocab():
        if target.vocabulary == draft.vocabulary:
            return draft
        ids = np.arange(min(target.vocabulary, draft.vocabulary))  # the larger one is padded
        return Translated(target, draft, Shared(ids, ids, target.vocabulary), None)
    shared = Shared.of(target, draft)
    if len(shared.ours) * FEWEST < target.vocabulary:
        raise DraftproofError(
            f"draft {draft.name!r} shares only {len(shared.ours)} of the {target.vocabulary} tokens of "
            f"{target.name!r}: let it draft text with --draft text:{draft.name}"
        )
    return Translated(target, draft, shared, Reader.of(target, draft))


class Shared(NamedTuple):
    """The tokens that two vocabularies have in common."""

    ours: np.ndarray  # [S] ids in the target's vocabulary
    theirs: np.ndarray  # [S] ids of the same tokens in the draft's
    size: int  # of the target's vocabulary

    @staticmethod
    def of(target: Model, draft: Model) -> Shared:
        """Match tokens that have the same bytes; special tokens are not shared."""
        sides = []
        for model in (target, draft):
            plain = sorted(TokenBytes.of(model).plain.items(), reverse=True)  # of equal tokens the first id counts
            sides.append({spelled: i for i, spelled in plain if i < model.vocabulary})
        both = sorted(sides[0].keys() & sides[1].keys(), key=sides[0].__getitem__)
        ours, theirs = (np.array([side[spelled] for spelled in both], dtype=np.int64) for side in sides)
        return Shared(ours, theirs, target.vocabulary)

    def carry(self, rows: Array, empty: Any) -> Array:
        """Rows over the draft's tokens [..., V'] as rows over the target's [..., V]; `empty` where no token is shared.

        >>> Shared(np.array([0, 3]), np.array([2, 1]), 4).carry(np.array([0.5, 0.3, 0.2]), 0.0)
        array([0.2, 0. , 0. , 0.3])
        """
        xp = array_namespace(rows)
        carried = xp.full((*rows.shape[:-1], self.size), empty, dtype=rows.dtype, device=rows.device)
        carried[..., self.ours] = rows[..., self.theirs]
        return carried


class Translated:
    """A drafter with another vocabulary, translated to the target's tokens."""

    def __init__(self, target: Model, draft: Model, shared: Shared, reader: Reader | None) -> None:
        """`reader` is None where the vocabularies differ by padding alone, and no text has to be tokenised again."""
        self.draft, self.shared, self.reader = draft, shared, reader
        self.name = draft.name if reader is None else f"{draft.name} ({len(shared.ours)} shared tokens)"
        self.vocabulary = target.vocabulary
        self.context: int | None = None
        self.end_tokens: tuple[int, ...] = ()
        self.tokenizer = None
        self.theirs = np.full(target.vocabulary + 1, -1, dtype=np.int64)  # the last entry is read by token -1
        self.theirs[shared.ours] = shared.theirs

    def session(self, rows: int, capacity: int) -> TranslatedSession:
        return TranslatedSession(self, rows, room(self.draft, capacity))


class TranslatedSession:
    """The drafter's session, with each row's text in bytes and in the drafter's tokens."""

    speaks: Literal["logits", "law"] = "logits"

    def __init__(self, model: Translated, rows: int, capacity: int) -> None:
        self.model, self.capacity = model, capacity
        self.inner = model.draft.session(rows, capacity)
        self.texts = [b""] * rows
        self.views: list[list[int]] = [[]] * rows  # lists are replaced, never changed
        self.current = [True] * rows  # whether the view covers the whole text

    def join(self, row: int, tokens: Sequence[int]) -> None:
        if self.model.reader is None:
            self.views[row] = [i for i in self.model.theirs[list(tokens)].tolist() if i >= 0] or [0]
        else:
            self.texts[row] = self.model.reader.spell(tokens)
            self.views[row], self.current[row] = self.model.reader.read(self.texts[row])
        self.inner.join(row, self.views[row])

    def copy(self, source: int, target: int) -> None:
        self.texts[target], self.views[target] = self.texts[source], self.views[source]
        self.current[target] = self.current[source]
        self.inner.copy(source, target)

    def prefill(self, row: int, count: int) -> bool:
        return outgrown(self.views[row], 0, self.capacity) or prefill(self.inner, row, count)

    def forget(self) -> None:
        forget(self.inner)

    def extend(self, tree: Tree, tokens: Array, nodes: range) -> Array:
        if nodes.start == 0:
            for row in range(len(tokens)):
                self._make_room(row, tree.size)
        theirs = self._translate(tokens)
        rows = self.model.shared.carry(self.inner.extend(tree, theirs, nodes), -np.inf)
        drawn = np.asarray(tokens)
        for b in range(len(theirs)):
            for i, node in enumerate(nodes):
                foreign = any(drawn[b, n] >= 0 > theirs[b, n] for n in tree.path(node))  # another drafter's guess
                if foreign or not self.current[b]:
                    rows[b, i] = -np.inf
        return rows

    def commit(self, tree: Tree, tokens: Array, node: Sequence[int], token: Sequence[int]) -> None:
        theirs = self._translate(tokens)
        last = self.model.theirs[list(token)].tolist()
        self.inner.commit(tree, theirs, node, [max(token_id, 0) for token_id in last])
        for b, end in enumerate(node):
            path = tree.path(int(end))
            added = [*theirs[b, list(path)].tolist(), last[b]]
            if self.model.reader is not None:
                self.texts[b] += self.model.reader.spell([*(int(tokens[b][n]) for n in path), token[b]])
            if self.current[b] and -1 not in added:
                self.views[b] = [*self.views[b], *added]
                continue
            before = self.views[b] + added[: added.index(-1) if -1 in added else None]
            new = [i for i in self.views[b] + added if i >= 0]
            if self.model.reader is not None:
                new, self.current[b] = self.model.reader.read(self.texts[b])
            self.views[b] = new
            rejoin(self.inner, b, new, common(before, new))

    def _translate(self, tokens: Array) -> np.ndarray:
        """The tokens [B, N] in the drafter's ids; -1 where none was drawn or the drafter has no such token."""
        theirs: np.ndarray = self.model.theirs[np.asarray(tokens)]
        theirs[:, 0] = [view[-1] for view in self.views[: len(theirs)]]
        return theirs

    def _make_room(self, row: int, nodes: int) -> None:
        """Shorten a text that has outgrown the drafter's context."""
        if not outgrown(self.views[row], nodes, self.capacity):
            return
        self.texts[row], self.views[row] = shorten(self.texts[row], self.views[row], self.model.reader, self.capacity)
        self.inner.join(row, self.views[row])
