"""generate() and stream(): text from a target model, drafted cheaply, verified exactly."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from draftproof import verify as verifiers
from draftproof.draft import Tree, Verifier
from draftproof.draws import DRAWS, Draw
from draftproof.engine.step import Row, step
from draftproof.engine.text import Decoder, Piece, Stopper
from draftproof.engine.trace import Step, Trace
from draftproof.errors import DraftproofError
from draftproof.models import check_vocabularies, drafter, load
from draftproof.models.session import Model
from draftproof.noise import check_seed
from draftproof.sampling import Sampling

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]  # words, token ids, or chat messages


class Output(NamedTuple):
    """A finished text."""

    text: str
    tokens: list[int]
    finish: str  # "end" (the model ended it), "length", "stop" (a stop string), "context" (the window is full)
    seed: int
    trace: Trace


class Setup(NamedTuple):
    """Everything that is decided before the first step."""

    target: Model
    draft: Model | None
    verifier: Verifier
    tree: Tree
    draw: Draw
    sampling: Sampling
    draft_sampling: Sampling
    max_new_tokens: int
    stop: tuple[str, ...]
    seed: int


def generate(target: str | Model, prompt: Prompt, **settings: Any) -> Output:
    """One text; takes the settings of `stream`.

    >>> from draftproof.models.table import TableModel
    >>> coin = TableModel(lambda context: [0.5, 0.5])
    >>> generate(coin, [0], draft=coin, max_new_tokens=5, seed=1).tokens
    [0, 0, 0, 1, 1]
    """
    writing = stream(target, prompt, **settings)
    for _ in writing:
        pass
    return writing.output


def stream(
    target: str | Model,
    prompt: Prompt,
    *,
    draft: str | Model | None = "ngram",
    verify: str = "block",
    tree: Tree | None = None,
    draw: str | None = None,
    sampling: Sampling | None = None,
    draft_sampling: Sampling | None = None,
    max_new_tokens: int = 128,
    stop: Sequence[str] = (),
    seed: int | None = None,
    chat: bool = True,
) -> Stream:
    """Text piece by piece, as it is made; `.output` holds the whole once it is finished.

    target          a model, or a name for `draftproof.models.load`
    prompt          words (put through the model's chat template if it has one and `chat` is true), chat messages, or
                    token ids, taken as they are
    draft           a model, "ngram", a name, or None for plain sampling
    verify          a name of `draftproof list`
    tree            shape of the guesses; a chain of five by default
    draw            how siblings are drawn ("iid", "distinct", "fixed"); by default what suits verifier and tree
    sampling        what law the text follows; `draft_sampling` shapes the guesses only and never changes that law
    seed            same seed, settings and machine: same text; drawn freshly if not given, and reported
    """
    verifier = verifiers.get(verify)
    target = load(target) if isinstance(target, str) else target
    sampling = sampling or Sampling()
    if not sampling.end_tokens:
        sampling = dataclasses.replace(sampling, end_tokens=target.end_tokens)
    draft = drafter(draft, target) if isinstance(draft, str) else draft
    if draft is not None:
        check_vocabularies(target, draft)
    tree = Tree.chain(0) if draft is None else (tree or Tree.chain(5))
    if not verifier.accepts(tree):
        raise DraftproofError(f"verifier {verify!r} works on {verifier.trees} drafts only: choose such a tree")
    if max_new_tokens < 1:
        raise DraftproofError(f"max_new_tokens must be at least 1, not {max_new_tokens}")
    setup = Setup(
        target=target,
        draft=draft,
        verifier=verifier,
        tree=tree,
        draw=choose_draw(verifier, tree, draw),
        sampling=sampling,
        draft_sampling=draft_sampling or sampling,
        max_new_tokens=max_new_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        seed=secrets.randbits(63) if seed is None else check_seed(seed),
    )
    return Stream(setup, encode(target, prompt, chat))


def choose_draw(verifier: Verifier, tree: Tree, name: str | None) -> Draw:
    """The named way of drawing siblings, or the one that finds most among those the verifier is exact for."""
    if name is None:
        order = ("iid", "distinct", "fixed") if tree.is_chain else ("plan", "distinct", "iid", "fixed")
        name = next(d for d in order if d in verifier.draws)
    if name not in verifier.draws:
        exact = ", ".join(sorted(verifier.draws))
        raise DraftproofError(f"verifier {verifier.name!r} is not exact for {name!r} draws: use {exact}")
    return DRAWS[name]


def encode(target: Model, prompt: Prompt, chat: bool = True) -> tuple[int, ...]:
    """Token ids of a prompt, checked against vocabulary and context."""
    tokenizer = target.tokenizer
    if len(prompt) == 0:
        raise DraftproofError("the prompt is empty: give at least one word or token")
    ids: list[Any]
    if isinstance(prompt[0], int):
        ids = list(prompt)
    elif tokenizer is None:
        raise DraftproofError(f"model {target.name!r} has no tokenizer: give the prompt as token ids")
    elif not isinstance(prompt, str) or (chat and tokenizer.chat_template):
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    else:
        ids = tokenizer(prompt)["input_ids"]
    if not ids:
        raise DraftproofError("the prompt has no tokens: give at least one word")
    strange = [token for token in ids if not 0 <= token < target.vocabulary]
    if strange:
        raise DraftproofError(f"token id {strange[0]} is outside the vocabulary (0 to {target.vocabulary - 1})")
    if target.context is not None and len(ids) >= target.context:
        raise DraftproofError(
            f"the prompt has {len(ids)} tokens but the context of {target.name!r} holds {target.context}: shorten it"
        )
    return tuple(ids)


class Stream:
    """Iterate for pieces of text; read `.output` afterwards."""

    def __init__(self, setup: Setup, prompt: tuple[int, ...]) -> None:
        self.setup = setup
        self.prompt = prompt
        self.tokens: list[int] = []
        self.finish = ""
        self.trace = Trace(setup.verifier.name, setup.draft.name if setup.draft else "none")
        self._shown: list[str] = []
        self._decoder = Decoder(setup.target.tokenizer)
        self._stopper = Stopper(setup.stop)
        self._pieces = self._run()

    def __iter__(self) -> Iterator[Piece]:
        return self._pieces

    @property
    def output(self) -> Output:
        if not self.finish:
            raise DraftproofError("the text is not finished: iterate to the end before reading `.output`")
        return Output("".join(self._shown), self.tokens, self.finish, self.setup.seed, self.trace)

    def _run(self) -> Iterator[Piece]:
        setup = self.setup
        room = len(self.prompt) + setup.max_new_tokens
        capacity = min(room, setup.target.context or room) + setup.tree.size
        target = setup.target.session(1, capacity)
        target.join(0, self.prompt)
        guesser = None
        if setup.draft is not None:
            guesser = setup.draft.session(1, capacity)
            guesser.join(0, self.prompt)
        while not self.finish:
            tree = setup.tree.cut(self._depth_left()) if guesser else Tree.chain(0)
            outcome = step([self._row()], target, guesser, setup.verifier, tree, setup.draw)
            if outcome.failure is not None:
                self.trace.failures[outcome.failure] += 1
                guesser = None
            for piece in self._absorb(outcome.steps[0]):
                self._shown.append(piece.text)
                yield piece

    def _row(self) -> Row:
        setup = self.setup
        return Row(
            self.prompt,
            tuple(self.tokens),
            setup.sampling,
            setup.draft_sampling,
            setup.seed,
            request=0,
            step=len(self.trace.steps),
        )

    def _depth_left(self) -> int:
        """How deep a draft may go: what lies beyond the wanted length or the context window would be thrown away."""
        left = self.setup.max_new_tokens - len(self.tokens)
        if self.setup.target.context is not None:
            left = min(left, self.setup.target.context - len(self.prompt) - len(self.tokens))
        return left - 1

    def _absorb(self, made: Step) -> Iterator[Piece]:
        """Take a step's tokens one by one until something ends the text."""
        kept = 0
        for i, token in enumerate(made.tokens):
            kept += 1
            self.tokens.append(token)
            kind = "accepted" if i < made.accepted else "corrected" if made.depth > made.accepted else "plain"
            if token in self.setup.sampling.end_tokens:
                self.finish = "end"
                break
            pieces, stopped = self._stopper.feed(Piece(self._decoder.feed(token), kind))
            yield from pieces
            if stopped:
                self.finish = "stop"
            elif len(self.tokens) == self.setup.max_new_tokens:
                self.finish = "length"
            elif self._depth_left() < 0:
                self.finish = "context"
            if self.finish:
                break
        self.trace.steps.append(made._replace(tokens=made.tokens[:kept], accepted=min(made.accepted, kept)))
        if self.finish and self.finish != "stop":
            pieces, stopped = self._stopper.feed(Piece(self._decoder.rest(), "plain"))
            yield from pieces
            if not stopped:
                yield from self._stopper.rest()
