"""Draft text with any model and tokenise it again for the target (Timor et al., arXiv 2502.05202).

The drafter needs no token in common with the target. It writes its likeliest continuation, which is tokenised again by
the target's tokenizer; the tokens are guesses whose law is a point mass. Nothing is drawn, so the guesses are a
function of the text so far and every verifier is exact for them. Greedy decoding is the best choice, because a guess
without a law is accepted with the target's own probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from draftproof.draft import Tree
from draftproof.errors import DraftproofError
from draftproof.law import Array
from draftproof.models.base import Model, check_drafts_fit, forget, rejoin
from draftproof.models.drafters.token_bytes import Reader, TokenBytes, common, outgrown, room, shorten

AHEAD = 4  # the drafter writes at most two tokens per guess, and so many more
MARGIN = 64  # bytes of text before the guesses that are tokenised with them, for context


class Retokenizer(NamedTuple):
    """Converts the drafter's tokens to the target's tokens."""

    target: Model
    spelled: dict[int, bytes]  # bytes of the target's tokens
    written: dict[int, bytes]  # bytes of the drafter's tokens

    def retokenize(self, before: bytes, written: Sequence[int]) -> tuple[list[int], bool]:
        """The guesses, and whether the text ended. Without an end the last token is dropped: it may still grow."""
        ends = next((i for i, token in enumerate(written) if token not in self.written), None)
        text = b"".join(self.written[token] for token in written[:ends])
        tokens = self._after(before, text)
        if ends is None:
            return tokens[:-1], False
        return tokens + list(self.target.end_tokens[:1]), True

    def _after(self, before: bytes, text: bytes) -> list[int]:
        """Tokens of `text` after `before`; `text` is tokenised alone if a token would span both."""
        together = self._encode(before + text)
        start, remaining = len(together), len(text.decode(errors="ignore").encode())
        while remaining > 0 and start > 0:
            start -= 1
            remaining -= len(self.spelled.get(together[start], b""))
        return together[start:] if remaining == 0 else self._encode(text)

    def _encode(self, text: bytes) -> list[int]:
        words = text.decode(errors="ignore")
        return [int(token) for token in self.target.tokenizer.encode(words, add_special_tokens=False)]


class TextDrafter:
    """Any model with a tokenizer as drafter for any target with one."""

    def __init__(self, target: Model, draft: Model) -> None:
        check_drafts_fit(draft, "draft")
        if target.tokenizer is None or draft.tokenizer is None:
            raise DraftproofError(
                f"text drafts need two tokenizers, but {target.name!r} or {draft.name!r} has none: use --draft ngram"
            )
        self.draft = draft
        self.reader = Reader.of(target, draft)
        self.retokenizer = Retokenizer(target, TokenBytes.of(target).plain, TokenBytes.of(draft).plain)
        self.name = f"text:{draft.name}"
        self.vocabulary = target.vocabulary
        self.context: int | None = None
        self.end_tokens: tuple[int, ...] = ()
        self.tokenizer = None

    def session(self, rows: int, capacity: int) -> TextDraftSession:
        return TextDraftSession(self, rows, room(self.draft, capacity))


class TextDraftSession:
    """Each row's text in bytes, the drafter's view of it, and in a step the drafter's continuation and its guesses."""

    speaks: Literal["logits", "law"] = "law"

    def __init__(self, model: TextDrafter, rows: int, capacity: int) -> None:
        self.model, self.capacity = model, capacity
        self.inner = model.draft.session(rows, capacity)
        self.texts = [b""] * rows
        self.views: list[list[int]] = [[]] * rows  # lists are replaced, never changed
        self.written: list[list[int]] = [[]] * rows
        self.guesses: list[list[int]] = [[]] * rows

    def join(self, row: int, tokens: Sequence[int]) -> None:
        self.texts[row], self.views[row], self.written[row] = self.model.reader.spell(tokens), [], []

    def copy(self, source: int, target: int) -> None:
        self.texts[target], self.views[target] = self.texts[source], self.views[source]
        self.written[target], self.guesses[target] = self.written[source], self.guesses[source]
        self.inner.copy(source, target)

    def forget(self) -> None:
        self.written = [[]] * len(self.written)
        forget(self.inner)

    def extend(self, tree: Tree, tokens: Array, nodes: range) -> Array:
        if nodes.start == 0:
            self._write(len(tokens), tree.depth[-1])
        laws = np.zeros((len(tokens), len(nodes), self.model.vocabulary))
        for b, drawn in enumerate(tokens):
            for i, node in enumerate(nodes):
                path, guesses = [int(drawn[n]) for n in tree.path(node)], self.guesses[b]
                if len(path) < len(guesses) and path == guesses[: len(path)]:
                    laws[b, i, guesses[len(path)]] = 1.0
        return laws

    def commit(self, tree: Tree, tokens: Array, node: Sequence[int], token: Sequence[int]) -> None:
        """Commit all the drafter wrote; the next step compares it with what was accepted."""
        rows = range(len(node))
        if self.written[0]:
            mine = np.array([[self.views[b][-1], *self.written[b]] for b in rows])
            self.inner.commit(Tree.chain(mine.shape[1] - 1), mine, [mine.shape[1] - 1] * len(mine), [0] * len(mine))
        for b in rows:
            accepted = [*(int(tokens[b][n]) for n in tree.path(int(node[b]))), int(token[b])]
            self.texts[b] += self.model.reader.spell(accepted)
            self.views[b], self.written[b] = self.views[b] + self.written[b], []

    def _write(self, rows: int, depth: int) -> None:
        """Write until every row has `depth` guesses, or about twice as many tokens.

        A row may have to continue because of others, and its guesses must not depend on that: earlier guesses stay, and
        a further one counts only if it comes within its own limit of tokens.
        """
        chain = Tree.chain(2 * depth + AHEAD)
        current = [self._read(b, chain.size) for b in range(rows)]
        tokens = np.full((rows, chain.size), -1, dtype=np.int64)
        tokens[:, 0] = [view[-1] for view in self.views[:rows]]
        self.guesses = [[]] * len(self.guesses)
        for node in range(chain.size - 1):
            logits = self.inner.extend(chain, tokens, range(node, node + 1))[:, 0]
            tokens[:, node + 1] = array_namespace(logits).argmax(logits, axis=-1).tolist()
            finished = []
            for b in range(rows):
                self.written[b] = tokens[b, 1 : node + 2].tolist()
                guesses, final = self.model.retokenizer.retokenize(self.texts[b][-MARGIN:], self.written[b])
                count = len(self.guesses[b])
                if guesses[:count] == self.guesses[b] and node < 2 * count + 2 + AHEAD:
                    self.guesses[b] = guesses
                finished.append(final or len(self.guesses[b]) >= depth)
            if all(finished):
                break
        for b in range(rows):
            if not current[b]:  # an incomplete character cannot be continued
                self.guesses[b] = []

    def _read(self, row: int, nodes: int) -> bool:
        """Give the drafter a row's text; returns whether all of it could be tokenised."""
        before = self.views[row]
        view, whole = self.model.reader.read(self.texts[row])
        if outgrown(view, nodes, self.capacity):
            self.texts[row], view = shorten(self.texts[row], view, self.model.reader, self.capacity)
        self.views[row] = view
        rejoin(self.inner, row, view, common(before, view))
        return whole
