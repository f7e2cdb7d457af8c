"""Several drafters in order of preference: each row uses the first that has a token, such as "ngram|smollm2".

Which drafter serves a row is decided at the start of a step, from what follows the committed text, so it depends on
nothing that is drawn. A drafter that no row needs is not called; its session reads what it missed at its next call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace, is_numpy_array

from draftproof.draft import Tree
from draftproof.errors import DraftproofError
from draftproof.law import Array
from draftproof.models.base import (
    LearnsFromTarget,
    Model,
    ModelFacts,
    Session,
    draft_session,
    facts,
    forget,
    innermost,
    offers,
    predict,
    prefill,
    rejoin,
    taps,
)

# Score of all other tokens beside a certain guess. Finite, so that masking the guess still leaves a valid law.
UNLIKELY = -1e4


class Fallback:
    """A drafter that tries several in order: `Fallback([NGram(...), small_model])`."""

    def __init__(self, parts: Sequence[Model]) -> None:
        if len(parts) < 2:
            raise DraftproofError(f"a fallback needs at least two drafters, not {len(parts)}: pass the drafter itself")
        if len({part.vocabulary for part in parts}) > 1:
            sizes = ", ".join(f"{part.name} {part.vocabulary}" for part in parts)
            raise DraftproofError(f"drafters must share one vocabulary, not {sizes}: choose drafters of one target")
        self.parts: list[Any] = list(parts)
        self.name = "|".join(part.name for part in parts)
        self.vocabulary = parts[0].vocabulary
        self.context: int | None = None
        self.end_tokens: tuple[int, ...] = ()
        self.tokenizer = None
        self.taps: Sequence[int] = next((read for part in self.parts if (read := taps(part))), ())

    def session(self, rows: int, capacity: int) -> FallbackSession:
        return FallbackSession([part.session(rows, capacity) for part in self.parts], self.vocabulary)

    def beside(self, session: Any) -> FallbackSession:
        """Open a session beside the target's, where one of the drafters reads its hidden states."""
        main = innermost(session)
        parts = [draft_session(part, session, main.cache.rows, main.capacity) for part in self.parts]
        return FallbackSession(parts, self.vocabulary)

    @property
    def facts(self) -> ModelFacts:
        """The facts of the largest drafter; how good they are together is only known when measured."""
        return ModelFacts(weights=max(facts(part).weights for part in self.parts))


class FallbackSession:
    """A session of each drafter; all of them commit every step."""

    speaks: Literal["logits", "law"] = "logits"

    def __init__(self, sessions: Sequence[Session], vocabulary: int) -> None:
        self.sessions: list[Any] = list(sessions)
        self.learners = [learner for session in sessions if (learner := offers(session, LearnsFromTarget)) is not None]
        self.vocabulary = vocabulary
        self.source: list[int] = []  # index of each row's drafter in this step

    def join(self, row: int, tokens: Sequence[int]) -> None:
        for session in self.sessions:
            session.join(row, tokens)

    def rejoin(self, row: int, tokens: Sequence[int], kept: int) -> None:
        for session in self.sessions:
            rejoin(session, row, tokens, kept)

    def prefill(self, row: int, count: int) -> bool:
        read = [prefill(session, row, count) for session in self.sessions]  # all of them read a part
        return all(read)

    def predict(self, row: int, tokens: Sequence[int]) -> None:
        for session in self.sessions:
            predict(session, row, tokens)

    def copy(self, source: int, target: int) -> None:
        for session in self.sessions:
            session.copy(source, target)

    def forget(self) -> None:
        for session in self.sessions:
            forget(session)

    def extend(self, tree: Tree, tokens: Array, nodes: range) -> Array:
        scores = self._first(tree, tokens, nodes) if nodes.start == 0 else self._deeper(tree, tokens, nodes)
        rows = [scores[source][b] for b, source in enumerate(self.source)]
        like = next((row for row in rows if not is_numpy_array(row)), rows[0])
        xp = array_namespace(like)
        return xp.stack([xp.asarray(row, dtype=like.dtype, device=like.device) for row in rows], axis=0)

    def learn(self, tree: Tree, tokens: Array, logits: Array) -> None:
        """Pass the target's logits [B, N, V] to drafters that remember them."""
        for session in self.learners:
            session.learn(tree, tokens, logits)

    def commit(self, tree: Tree, tokens: Array, node: Sequence[int], token: Sequence[int]) -> None:
        for session in self.sessions:
            session.commit(tree, tokens, node, token)

    def _first(self, tree: Tree, tokens: Array, nodes: range) -> dict[int, Array]:
        """Call the drafters in order until every row has a guess; the last one serves all remaining rows."""
        last = len(self.sessions) - 1
        self.source, scores = [last] * len(tokens), {}
        for i in range(last + 1):
            remaining = [b for b, source in enumerate(self.source) if source == last]
            if not remaining:
                break
            scores[i] = self._scores(i, tree, tokens, nodes)
            xp = array_namespace(scores[i])
            has_guess = xp.max(scores[i][:, 0], axis=-1) > -np.inf
            for b in remaining:
                if bool(has_guess[b]):
                    self.source[b] = i
        return scores

    def _deeper(self, tree: Tree, tokens: Array, nodes: range) -> dict[int, Array]:
        return {i: self._scores(i, tree, tokens, nodes) for i in set(self.source)}

    def _scores(self, part: int, tree: Tree, tokens: Array, nodes: range) -> Array:
        """A drafter's scores [B, n, V]; minus infinity everywhere in a row without a guess."""
        session = self.sessions[part]
        rows = session.extend(tree, tokens, nodes)
        if session.speaks == "logits":
            return rows
        xp = array_namespace(rows)
        some = xp.max(rows, axis=-1, keepdims=True) > 0
        scores = xp.where(rows > 0, xp.log(xp.where(rows > 0, rows, rows * 0 + 1)), rows * 0 + UNLIKELY)
        return xp.where(some, scores, rows * 0 - np.inf)
