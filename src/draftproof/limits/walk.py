"""Walk along a text that the target writes, with the drafter's tokens and both models' laws at every position."""

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

REDRAWN = 4  # redraws of the first guesses at every position
LARGEST = 33  # tokens in the largest call that is timed


class Walk:
    """A text and the position in it: `look` drafts there, `go_on` moves to the next."""

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
        self.sessions: list[Session] = [main, *(drafter.session for drafter in self.drafters)]
        for session in self.sessions:
            session.join(0, ids)
        cut = self.has_logits and draft_top_k < target.vocabulary
        self.draft_top_k = draft_top_k if cut else 0  # of the tokens the drafter draws from; 0 is all
        drafting = dataclasses.replace(sampling, top_k=self.draft_top_k)
        self.row = Row(ids, (), sampling, drafting, (key,), 0, length)
        self.draft: Draft | None = None
        self.ended = False

    @property
    def has_logits(self) -> bool:
        """Whether the drafter gives logits, to which a temperature and truncation apply; an n-gram lookup does not."""
        return self.sessions[1].speaks == "logits"

    @property
    def finished(self) -> bool:
        """Whether the text is complete, was ended by the target, or leaves no room in the context for guesses."""
        written = len(self.row.prompt) + len(self.row.output)
        full = self.context is not None and written + max(self.length, LARGEST) > self.context
        return self.ended or full or written == self.last

    def look(self) -> Draft:
        """Draft at this position."""
        shape = Tree.paths(self.forest.width, self.length)
        guess = self.forest.guesser(self._noise(Lane.DRAFT, shape.size))
        proposal = propose([self.row], self.drafters, shape, guess, self.vocabulary)
        if proposal.failure is not None:
            raise DraftproofError(f"the drafter failed ({proposal.failure}): check the draft model")
        p = self.target_laws(proposal.tree, proposal.tokens)
        p, (q,) = together(p, proposal.wide(self.drafters)[:1])
        self.draft = Draft(proposal.tree, beside(proposal.tokens, p), q, p)
        return self.draft

    def go_on(self) -> None:
        """Draw the next token of the text from the target's law at this position."""
        assert self.draft is not None
        token = numbers(sample(self.draft.p[:, 0], beside(self._noise(Lane.NEXT, 1)[:, 0], self.draft.p)))[0]
        tokens = np.asarray(numbers(self.draft.tokens))
        for session in self.sessions:
            session.commit(self.draft.tree, tokens, [0], [token])
        self.row = self.row._replace(output=(*self.row.output, token), step=self.row.step + 1)
        self.ended = token in self.row.sampling.ends

    def target_laws(self, tree: Tree, tokens: np.ndarray) -> Any:
        """The target's laws [1, N, V] after every node, from one call."""
        logits = self.sessions[0].extend(tree, tokens, range(tree.size))
        return laws(logits, [self.row], tree, tokens, range(tree.size), [self.row.sampling])

    def spare_noise(self) -> tuple[np.ndarray, np.ndarray]:
        """More uniforms of this position: for redrawn first guesses [R, K] and for selectors [R, ...]."""
        used, width = 1 + self.forest.width * self.length, self.forest.width
        first = self._noise(Lane.DRAFT, used + REDRAWN * width)[:, used:]
        select = self._noise(Lane.SELECT, REDRAWN * (width + 1) * self.length)
        return first.reshape(REDRAWN, width), select.reshape(REDRAWN, -1)

    def _noise(self, lane: Lane, count: int) -> np.ndarray:
        """Uniforms [1, count] of this position."""
        return noise([(self.row.members[0], self.row.step)], lane, count)
