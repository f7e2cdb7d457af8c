"""A text as the target writes it, and at every position the drafter's guesses with both models' laws."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from draftproof.draft import Draft, Tree
from draftproof.engine.eager import Row, beside, laws, noise, numbers, propose, together
from draftproof.engine.request import SampleKey
from draftproof.errors import DraftproofError
from draftproof.law import sample
from draftproof.limits.forest import Forest
from draftproof.models.base import Model, Session, sessions
from draftproof.noise import Lane
from draftproof.sampling import Sampling

REDRAWN = 4  # times that the first guesses are drawn anew at every position
LARGEST = 33  # tokens of a call that the clock tries


class Walk:
    """Look at a position, then go on to the next."""

    def __init__(
        self,
        target: Model,
        draft: Model,
        ids: tuple[int, ...],
        sampling: Sampling,
        draft_top_k: int,
        forest: Forest,
        length: int,
        tokens: int,
        key: SampleKey,
    ) -> None:
        self.forest, self.length = forest, length
        self.context, self.vocabulary = target.context, target.vocabulary
        self.last = len(ids) + tokens
        capacity = self.last + max(forest.width * length + 1, LARGEST)
        main, self.drafters = sessions(target, [draft], 1, capacity)
        self.sessions: list[Session] = [main, *(one.session for one in self.drafters)]
        for session in self.sessions:
            session.join(0, ids)
        kept = draft_top_k if draft_top_k < target.vocabulary else 0
        drafting = dataclasses.replace(sampling, top_k=kept)
        self.row = Row(ids, (), sampling, drafting, (key,), 0, length)
        self.draft: Draft | None = None
        self.ended = False

    @property
    def finished(self) -> bool:
        """The text is as long as wanted, or the target ended it, or guesses would leave the context."""
        written = len(self.row.prompt) + len(self.row.output)
        full = self.context is not None and written + max(self.length, LARGEST) > self.context
        return self.ended or full or written == self.last

    def look(self) -> Draft:
        """The guesses here."""
        shape = Tree.paths(self.forest.width, self.length)
        guess = self.forest.guesser(self._noise(Lane.DRAFT, shape.size))
        made = propose([self.row], self.drafters, shape, guess, self.vocabulary)
        if made.failure is not None:
            raise DraftproofError(f"the drafter failed ({made.failure}): check the draft model")
        p = self.target_laws(made.tree, made.tokens)
        p, (q,) = together(p, made.wide(self.drafters)[:1])
        self.draft = Draft(made.tree, beside(made.tokens, p), q, p)
        return self.draft

    def go_on(self) -> None:
        """One more token of the text, from the target's law at the position looked at."""
        assert self.draft is not None
        token = numbers(sample(self.draft.p[:, 0], beside(self._noise(Lane.NEXT, 1)[:, 0], self.draft.p)))[0]
        tokens = np.asarray(numbers(self.draft.tokens))
        for session in self.sessions:
            session.commit(self.draft.tree, tokens, [0], [token])
        self.row = self.row._replace(output=(*self.row.output, token), step=self.row.step + 1)
        self.ended = token in self.row.sampling.ends

    def target_laws(self, tree: Tree, tokens: np.ndarray) -> Any:
        """[1, N, V] from one call."""
        logits = self.sessions[0].extend(tree, tokens, range(tree.size))
        return laws(logits, [self.row], tree, tokens, range(tree.size), [self.row.sampling])

    def spare_noise(self) -> tuple[np.ndarray, np.ndarray]:
        """Uniforms of this position for first guesses [R, K] and for selectors [R, ...]."""
        used, wide = 1 + self.forest.width * self.length, self.forest.width
        first = self._noise(Lane.DRAFT, used + REDRAWN * wide)[:, used:]
        select = self._noise(Lane.SELECT, REDRAWN * (wide + 1) * self.length)
        return first.reshape(REDRAWN, wide), select.reshape(REDRAWN, -1)

    def _noise(self, lane: Lane, count: int) -> np.ndarray:
        """[1, count] uniforms of this position."""
        return noise([(self.row.members[0], self.row.step)], lane, count)
