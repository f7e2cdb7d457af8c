"""One text in the making: its tokens, its words so far, and what ends it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from draftproof.engine.detokenize import Decoder, Piece, Stopper
from draftproof.engine.eager.rows import Member
from draftproof.engine.trace import Step, Trace
from draftproof.engine.tuning.shapes import Auto
from draftproof.models.base import Model
from draftproof.sampling import Sampling


class Output(NamedTuple):
    """A finished text."""

    text: str
    tokens: list[int]
    # "end" (by the model), "length", "stop" (a stop string), "context" (the window is full), "cancelled", "failed"
    finish: str
    seed: int
    trace: Trace

    @property
    def notice(self) -> str:
        """That the text is not exact, in words, if a lossy rule was asked for; else empty."""
        return self.trace.notice


class Request:
    """A prompt, how to go on from it, and how far that has come."""

    def __init__(
        self,
        target: Model,
        prompt: tuple[int, ...],
        sampling: Sampling,
        draft_sampling: Sampling,
        max_new_tokens: int,
        stop: tuple[str, ...],
        member: Member,
        trace: Trace,
        pace: Auto | None = None,
    ) -> None:
        """`pace` decides how far this text is drafted, from its own past alone."""
        self.prompt = prompt
        self.sampling = sampling
        self.draft_sampling = draft_sampling
        self.max_new_tokens = max_new_tokens
        self.context = target.context
        self.member = member
        self.trace = trace
        self.pace = pace
        self._tempered = (1.0, draft_sampling)
        self.tokens: list[int] = []
        self.finish = ""
        self.error: Exception | None = None  # why it failed
        self.until: Callable[[Sequence[int]], bool] | None = None  # a further end, asked after every token
        self._shown: list[str] = []
        self._decoder = Decoder(target.tokenizer)
        self._stopper = Stopper(stop)

    @property
    def output(self) -> Output:
        return Output("".join(self._shown), self.tokens, self.finish, self.member.seed, self.trace)

    @property
    def depth(self) -> int:
        """How many guesses could be of use: one less than the tokens wanted, or than the context has room for."""
        left = self.max_new_tokens
        if self.context is not None:
            left = min(left, self.context - len(self.prompt))
        return left - len(self.tokens) - 1

    @property
    def reach(self) -> int:
        """How far to guess in the next step."""
        return self.depth if self.pace is None else min(self.depth, self.pace.length)

    def guessing(self, factor: float) -> Sampling:
        """How guesses are drawn, their temperature multiplied by `factor`."""
        if factor != self._tempered[0]:
            hotter = self.draft_sampling.temperature
            hotter = hotter if callable(hotter) else hotter * factor
            self._tempered = factor, dataclasses.replace(self.draft_sampling, temperature=hotter)
        return self._tempered[1]

    def fail(self, error: Exception) -> None:
        """It cannot go on; what it has said so far stays in it."""
        self.finish, self.error = "failed", error

    def absorb(self, made: Step) -> list[Piece]:
        """Take a step's tokens one by one until something ends the text; the words that are now certain."""
        kept = 0
        pieces: list[Piece] = []
        for i, token in enumerate(made.tokens):
            kept += 1
            self.tokens.append(token)
            kind = "accepted" if i < made.accepted else "corrected" if made.depth > made.accepted else "plain"
            pieces += self._take(token, kind)
            if self.finish:
                break
        self.trace.steps.append(
            made._replace(tokens=made.tokens[:kept], accepted=min(made.accepted, kept), cost=made.cost[:kept])
        )
        if self.finish and self.finish != "stop":
            pieces += self._last_words()
        self._shown += [piece.text for piece in pieces]
        return pieces

    def _take(self, token: int, kind: str) -> Iterator[Piece]:
        if token in self.sampling.ends:
            self.finish = "end"
            return
        pieces, stopped = self._stopper.feed(Piece(self._decoder.feed(token), kind))
        yield from pieces
        if stopped or (self.until is not None and self.until(self.tokens)):
            self.finish = "stop"
        elif len(self.tokens) == self.max_new_tokens:
            self.finish = "length"
        elif self.depth < 0:
            self.finish = "context"

    def _last_words(self) -> list[Piece]:
        pieces, stopped = self._stopper.feed(Piece(self._decoder.rest(), "plain"))
        return pieces if stopped else pieces + self._stopper.rest()
