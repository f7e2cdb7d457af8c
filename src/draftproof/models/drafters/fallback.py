"""Drafters in order of preference: a phrase found again where there is one, the next drafter's guess elsewhere.

Who guesses in a row is settled at the start of a step, by what follows the committed text, so it depends on nothing
that is drawn. A drafter that nobody needs is not asked; its session reads what it missed when it is next asked.
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
    taps,
)

# Score of the tokens beside a certain guess. Finite, so that masking the guess still leaves a valid law.
UNLIKELY = -1e4


class Mixed:
    """`Mixed([NGram(...), small_model])`, or by name "ngram|smollm2"."""

    def __init__(self, parts: Sequence[Model]) -> None:
        if len(parts) < 2:
            raise DraftproofError(f"a mixture needs at least two drafters, not {len(parts)}")
        if len({part.vocabulary for part in parts}) > 1:
            sizes = ", ".join(f"{part.name} {part.vocabulary}" for part in parts)
            raise DraftproofError(
                f"mixed drafters must have one vocabulary, not {sizes}: choose drafters of one target"
            )
        self.parts: list[Any] = list(parts)
        self.name = "|".join(part.name for part in parts)
        self.vocabulary = parts[0].vocabulary
        self.context: int | None = None
        self.end_tokens: tuple[int, ...] = ()
        self.tokenizer = None
        self.taps: Sequence[int] = next((read for part in self.parts if (read := taps(part))), ())

    def session(self, rows: int, capacity: int) -> MixedSession:
        return MixedSession([part.session(rows, capacity) for part in self.parts], self.vocabulary)

    def beside(self, session: Any) -> MixedSession:
        """Where one of the drafters reads the target's hidden states in this session."""
        main = innermost(session)
        parts = [draft_session(part, session, main.cache.rows, main.capacity) for part in self.parts]
        return MixedSession(parts, self.vocabulary)

    @property
    def facts(self) -> ModelFacts:
        """Of the largest drafter; how good they are together is not known before they were seen."""
        return ModelFacts(weights=max(facts(part).weights for part in self.parts))


class MixedSession:
    """A session of each drafter; all hear what was committed."""

    speaks: Literal["logits", "law"] = "logits"

    def __init__(self, sessions: Sequence[Session], vocabulary: int) -> None:
        self.sessions: list[Any] = list(sessions)
        self.learners = [one for session in sessions if (one := offers(session, LearnsFromTarget)) is not None]
        self.vocabulary = vocabulary
        self.source: list[int] = []  # of each row, in this step

    def join(self, row: int, tokens: Sequence[int]) -> None:
        for session in self.sessions:
            session.join(row, tokens)

    def copy(self, source: int, target: int) -> None:
        for session in self.sessions:
            session.copy(source, target)

    def forget(self) -> None:
        for session in self.sessions:
            forget(session)

    def extend(self, tree: Tree, tokens: Array, nodes: range) -> Array:
        said = self._first(tree, tokens, nodes) if nodes.start == 0 else self._deeper(tree, tokens, nodes)
        rows = [said[source][b] for b, source in enumerate(self.source)]
        like = next((row for row in rows if not is_numpy_array(row)), rows[0])
        xp = array_namespace(like)
        return xp.stack([xp.asarray(row, dtype=like.dtype, device=like.device) for row in rows], axis=0)

    def learn(self, tree: Tree, tokens: Array, logits: Array) -> None:
        """The target's logits [B, N, V], for drafters that remember them."""
        for session in self.learners:
            session.learn(tree, tokens, logits)

    def commit(self, tree: Tree, tokens: Array, node: Sequence[int], token: Sequence[int]) -> None:
        for session in self.sessions:
            session.commit(tree, tokens, node, token)

    def _first(self, tree: Tree, tokens: Array, nodes: range) -> dict[int, Array]:
        """Ask one after another until every row has a guess; the last one takes what is left."""
        last = len(self.sessions) - 1
        self.source, said = [last] * len(tokens), {}
        for i in range(last + 1):
            left = [b for b, source in enumerate(self.source) if source == last]
            if not left:
                break
            said[i] = self._scores(i, tree, tokens, nodes)
            xp = array_namespace(said[i])
            speaks = xp.max(said[i][:, 0], axis=-1) > -np.inf
            for b in left:
                if bool(speaks[b]):
                    self.source[b] = i
        return said

    def _deeper(self, tree: Tree, tokens: Array, nodes: range) -> dict[int, Array]:
        return {i: self._scores(i, tree, tokens, nodes) for i in set(self.source)}

    def _scores(self, part: int, tree: Tree, tokens: Array, nodes: range) -> Array:
        """[B, n, V]: what a drafter says, as scores; minus infinity everywhere where it has no guess."""
        session = self.sessions[part]
        said = session.extend(tree, tokens, nodes)
        if session.speaks == "logits":
            return said
        xp = array_namespace(said)
        some = xp.max(said, axis=-1, keepdims=True) > 0
        scores = xp.where(said > 0, xp.log(xp.where(said > 0, said, said * 0 + 1)), said * 0 + UNLIKELY)
        return xp.where(some, scores, said * 0 - np.inf)
