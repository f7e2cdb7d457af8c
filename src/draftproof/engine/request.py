"""A request: one text being generated, its tokens, its text so far, and what ends it."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from draftproof.engine.detokenize import Decoder, Piece, Stopper
from draftproof.engine.trace import Step, TokenLogprob, Trace
from draftproof.engine.tuning import Tuner
from draftproof.grammar import State
from draftproof.sampling import Sampling

ENDLESS = 2**31  # tokens in the context of a model that has no limit


class SampleKey(NamedTuple):
    """The key of one sample's random numbers: its seed, and its number among the samples of that seed."""

    seed: int
    request: int


class Output(NamedTuple):
    """A finished text."""

    text: str
    tokens: list[int]
    # "end" (by the model, or where its grammar ends), "length", "stop" (a stop string), "context" (the window is full),
    # "cancelled", "failed"
    finish: str
    seed: int
    trace: Trace
    logprobs: list[TokenLogprob] | None = None  # of each token, where they were asked for

    @property
    def notice(self) -> str:
        """A warning that the text is not exact, if a lossy rule was used; else empty."""
        return self.trace.notice


@dataclass(eq=False)
class Request:
    """A prompt, its settings, and the text generated so far."""

    prompt: tuple[int, ...]
    sampling: Sampling
    draft_sampling: Sampling
    max_new_tokens: int
    key: SampleKey
    trace: Trace = field(default_factory=Trace)
    context: int | None = None  # longest text of the target
    tokenizer: Any = None  # None: the text is token ids
    stop: tuple[str, ...] = ()
    stopping: Callable[[Sequence[int]], bool] | None = None  # another stopping criterion, checked after every token
    setup: Any = None  # the Setup that made it: it knows the stepper
    prediction: tuple[int, ...] = ()  # what the caller expects the text to be much like
    tuner: Tuner | None = None  # decides how deep this text is drafted; its own, or one of several requests
    cuts_drafts: bool = False  # nothing is drafted beyond max_new_tokens
    top_logprobs: int | None = None  # how many of the likeliest tokens are reported for each token; None: no logprobs
    start: State | None = None  # of the grammar that the text follows

    tokens: list[int] = field(init=False, default_factory=list)
    logprobs: list[TokenLogprob] = field(init=False, default_factory=list)  # of `tokens`, if they were asked for
    finish: str = field(init=False, default="")
    error: Exception | None = field(init=False, default=None)  # why it failed

    def __post_init__(self) -> None:
        self._tempered = (1.0, self.draft_sampling)
        self._begin()

    def _begin(self) -> None:
        self.tokens, self.logprobs, self.finish = [], [], ""
        self.state = self.start  # of the grammar, after the tokens
        self._shown: list[str] = []
        self._decoder = Decoder(self.tokenizer)
        self._stopper = Stopper(self.stop)

    @property
    def output(self) -> Output:
        logprobs = None if self.top_logprobs is None else self.logprobs
        return Output("".join(self._shown), self.tokens, self.finish, self.key.seed, self.trace, logprobs)

    @property
    def left(self) -> int:
        """How many more tokens the text may have."""
        return min(self.max_new_tokens - len(self.tokens), self._room)

    @property
    def depth(self) -> int:
        """How deep a draft may go: the token after it must fit into the context.

        A draft that stopped at max_new_tokens would change the last tokens, and a shorter text with the same seed would
        not be the beginning of a longer one. So that is done only where `cuts_drafts` says that it costs nothing.
        """
        return (self.left if self.cuts_drafts else self._room) - 1

    @property
    def _room(self) -> int:
        """How many more tokens the context has room for."""
        return (ENDLESS if self.context is None else self.context - len(self.prompt)) - len(self.tokens)

    @property
    def reach(self) -> int:
        """How deep to draft in the next step."""
        return self.depth if self.tuner is None else min(self.depth, self.tuner.tree.depth[-1])

    def tempered(self, factor: float) -> Sampling:
        """The draft's sampling with its temperature multiplied by `factor`."""
        if factor != self._tempered[0]:
            temperature = self.draft_sampling.temperature
            temperature = temperature if callable(temperature) else temperature * factor
            self._tempered = factor, dataclasses.replace(self.draft_sampling, temperature=temperature)
        return self._tempered[1]

    def fail(self, error: Exception) -> list[Piece]:
        """End the request with an error; its text so far is kept. Returns what was held back of it."""
        self.error = error
        return self._end("failed")

    def cancel(self) -> list[Piece]:
        """End the request here; its text so far is kept. Returns what was held back of it."""
        return self._end("cancelled")

    def _end(self, finish: str) -> list[Piece]:
        self.finish = finish
        pieces = self._last_words()
        self._shown += [piece.text for piece in pieces]
        return pieces

    @property
    def so_far(self) -> Output:
        """The output as it would be if the request were cancelled now; it can go on."""
        if self.finish:
            return self.output
        twin, trace = copy.copy(self), self.trace
        twin.tokens, twin.logprobs, twin._shown = list(self.tokens), list(self.logprobs), list(self._shown)
        twin.trace = dataclasses.replace(
            trace, steps=list(trace.steps), shapes=Counter(trace.shapes), failures=Counter(trace.failures)
        )
        twin._stopper = self._stopper.copy()
        twin.cancel()
        return twin.output

    def restore(self) -> None:
        """Make tokens and text from the steps of the trace again, after `absorb` was interrupted half way."""
        steps, self.trace.steps = self.trace.steps, []
        self._begin()
        for step in steps:
            self.absorb(step)

    def absorb(self, step: Step) -> list[Piece]:
        """Append a step's tokens until something ends the text; returns the text that is now certain."""
        used, step = 0, self._own(step.cut(self.left))
        pieces: list[Piece] = []
        for i, token in enumerate(step.tokens):
            used += 1
            self.tokens.append(token)
            kind = "accepted" if i < step.accepted else "corrected" if step.depth > step.accepted else "plain"
            pieces += self._take(token, kind)
            if self.finish:
                break
        self.logprobs += step.logprobs[:used]
        self.trace.steps.append(
            step._replace(
                tokens=step.tokens[:used],
                accepted=min(step.accepted, used),
                cost=step.cost[:used],
                logprobs=step.logprobs[:used],
            )
        )
        if self.finish and self.finish != "stop":
            pieces += self._last_words()
        self._shown += [piece.text for piece in pieces]
        return pieces

    def _own(self, step: Step) -> Step:
        """The step with the logprobs that this request asked for; others in its row may have asked for more."""
        if not step.logprobs:
            return step
        if self.top_logprobs is None:
            return step._replace(logprobs=())
        return step._replace(logprobs=tuple(one._replace(top=one.top[: self.top_logprobs]) for one in step.logprobs))

    def _take(self, token: int, kind: str) -> Iterator[Piece]:
        if token in self.sampling.ends:
            self.finish = "end"
            return
        pieces, stopped = self._stopper.feed(Piece(self._decoder.feed(token), kind))
        yield from pieces
        self.state = None if self.state is None else self.state.after(token)
        if self.state is not None and self.state.is_over:
            self.finish = "end"
        elif stopped or (self.stopping is not None and self.stopping(self.tokens)):
            self.finish = "stop"
        elif len(self.tokens) == self.max_new_tokens:
            self.finish = "length"
        elif not self.left:
            self.finish = "context"

    def _last_words(self) -> list[Piece]:
        """What was held back, because it might have become a character or a stop string."""
        pieces, stopped = self._stopper.feed(Piece(self._decoder.rest(), "plain"))
        return pieces if stopped else pieces + self._stopper.rest()
