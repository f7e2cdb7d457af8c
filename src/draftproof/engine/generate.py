"""generate() and stream(): text from a target model, drafted cheaply, verified exactly."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, overload

from draftproof.draft import Tree
from draftproof.engine.arguments import (
    Drafts,
    Named,
    Prompt,
    Prompts,
    Settings,
    as_lists,
    check_logprobs,
    check_names,
    check_text,
    encode_each,
    is_several,
    one_prompt,
)
from draftproof.engine.choices import may_temper
from draftproof.engine.detokenize import Piece
from draftproof.engine.request import Output, Request, SampleKey
from draftproof.engine.scheduler import Scheduler
from draftproof.engine.setup import Setup, new_seed
from draftproof.engine.tuning import Auto
from draftproof.errors import whole
from draftproof.models.base import Model, default_sampling
from draftproof.rule import Rule
from draftproof.sampling import Sampling

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on


ROWS = 16  # so many texts of a list of prompts are generated at once


@overload
def generate(target: Named, prompt: Prompt, *, n: None = None, **settings: Unpack[Settings]) -> Output: ...


@overload
def generate(target: Named, prompt: Prompt, *, n: int, **settings: Unpack[Settings]) -> list[Output]: ...


@overload
def generate(target: Named, prompt: Prompts, *, n: None = None, **settings: Unpack[Settings]) -> list[Output]: ...


@overload
def generate(target: Named, prompt: Prompts, *, n: int, **settings: Unpack[Settings]) -> list[list[Output]]: ...


def generate(
    target: Named, prompt: Prompt | Prompts, *, n: int | None = None, **settings: Unpack[Settings]
) -> Output | list[Output] | list[list[Output]]:
    """Generate one text, or a list of `n` independent ones; for a list of prompts, a list with the same of each.

    The n samples share the computation of the prompt and of everything their texts have in common; their tokens are
    drawn with separate noise, so they are independent.

    Texts of several prompts are generated together. With a seed, each is the text that its prompt alone gives with that
    seed; without one, each has a seed of its own.

    target          a model, or a name for `draftproof.load`
    prompt          a string (put through the model's chat template if it has one and `chat` is true), chat messages, or
                    token ids, taken as they are; or a list of several such prompts
    draft           a model, a name of `draftproof list`, a list of those (the k-th drafts sibling k), or None; "auto"
                    is a trained head where there is one for the target
    verify          a name of `draftproof list`; with "gumbel" the text depends on target and seed alone. "auto" is
                    block verification, or for a tree that it does not take the best rule that does
    lossy           give up exactness for a rule of `draftproof.lossy` such as "lenience:0.8"; the trace says so
    tree            shape of the draft, or its name ("chain:5"); "auto", the default, tunes it step by step and stops
                    drafting where that does not pay; an `Auto` passed to several calls keeps what it has learned
    draw            how siblings are drawn ("iid", "distinct", "fixed"); by default what suits verifier and tree
    sampling        what law the text follows; None: the model's own settings, those of its generation_config.json
    draft_sampling  shapes the draft only and never changes that law; `sampling` by default
    max_new_tokens  the text also ends at an end token, a stop string, or where the context is full; with a seed, a
                    shorter text is the beginning of a longer one
    stop            one string or several, before which the text ends
    seed            same seed, settings and machine: same text, and shapes are tuned by what the text itself shows. If
                    none is given, one is drawn, and shapes are tuned by the clock too: faster, but not repeatable
    logprobs        0: the output has the log-probability of each token in the law that is sampled from; k: and the k
                    likeliest tokens there
    continue_final_message  if the last chat message is the assistant's, the text continues it; False: a new turn begins
    compile         on a GPU, compile both models first; those of the Llama family are faster without it

    >>> from draftproof.models.table import TableModel
    >>> coin = TableModel(lambda context: [0.5, 0.5])
    >>> generate(coin, [0], draft=coin, max_new_tokens=5, seed=1).tokens
    [1, 1, 0, 0, 0]
    """
    check_names(settings)
    count = 1 if n is None else whole("n", n)
    prompts = as_lists(prompt)
    several = is_several(prompts)
    scheduler, groups = prepare(target, list(prompts) if several else [prompts], count, **settings)
    while not scheduler.is_finished:
        scheduler.step()
    outputs = [[request.output for request in group] for group in groups]
    if n is None:
        firsts = [samples[0] for samples in outputs]
        return firsts if several else firsts[0]
    return outputs if several else outputs[0]


def stream(target: Named, prompt: Prompt, **settings: Unpack[Settings]) -> Stream:
    """Generate one text piece by piece; `.output` holds the text so far. Settings as in `generate`."""
    check_names(settings)
    prompt = one_prompt(prompt, "use generate for a list of prompts, or an Engine to stream several")
    scheduler, [[request]] = prepare(target, [prompt], 1, **settings)
    return Stream(scheduler, request)


class Stream:
    """Iterate for pieces of text; `.output` is the text so far, and "cancelled" if that is not all of it.

    After a `break` the same stream can be iterated further. `cancel` ends it and frees its rows, and so does leaving
    a `with` block.
    """

    def __init__(self, scheduler: Scheduler, request: Request) -> None:
        self._scheduler, self._request = scheduler, request
        self._pieces: deque[Piece] = deque()  # written, and not handed out yet
        self._closed = False

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        while not self._pieces:
            if self._closed or self._scheduler.is_finished:
                raise StopIteration
            self._step()
        return self._pieces.popleft()

    def _step(self) -> None:
        try:
            for _, pieces in self._scheduler.step():
                self._pieces += pieces
        except Exception:
            raise  # has ended the request, or came from the model, which may be asked again
        except BaseException:  # such as KeyboardInterrupt: anywhere, so the step may be half done and cannot go on
            self._closed = True
            self._request.restore()
            with suppress(Exception):
                self._scheduler.cancel(self._request)
            raise

    @property
    def output(self) -> Output:
        return self._request.so_far

    def cancel(self) -> None:
        """End the text here, unless it has ended, and free its rows; the text so far stays in `.output`."""
        if not self._closed:
            self._closed = True
            self._pieces.clear()
            self._scheduler.cancel(self._request)
            while not self._scheduler.is_finished:  # steps in flight
                self._scheduler.step()

    close = cancel

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()


def prepare(
    target: Named,
    prompts: Sequence[Prompt],
    n: int = 1,
    *,
    draft: Drafts = "auto",
    verify: str = "auto",
    lossy: str | None = None,
    tree: Tree | Auto | str | None = None,
    draw: str | None = None,
    sampling: Sampling | None = None,
    draft_sampling: Sampling | None = None,
    max_new_tokens: int = 128,
    stop: str | Sequence[str] | None = None,
    seed: int | None = None,
    logprobs: int | None = None,
    chat: bool = True,
    continue_final_message: bool = True,
    compile: bool = False,
) -> tuple[Scheduler, list[list[Request]]]:
    """A scheduler with n requests for each prompt, everything checked. The settings are those of `generate`."""
    began = time.perf_counter()
    max_new_tokens, logprobs = whole("max_new_tokens", max_new_tokens), check_logprobs(logprobs)
    stops = check_text(stop, sampling, draft_sampling)

    def tempers(rule: Rule, host: Model) -> bool:
        controls = default_sampling(host) if sampling is None else sampling
        return draft_sampling is None and may_temper(rule, controls)

    setup = Setup.of(
        target,
        draft,
        verify=verify,
        lossy=lossy,
        tree=tree,
        draw=draw,
        repeatable=seed is not None,
        tempers=tempers,
        compile=compile,
    )
    samplings = setup.suited(sampling, draft_sampling)
    seeds = [new_seed(seed) for _ in prompts]
    texts = encode_each(setup.target, prompts, chat, continue_final_message)
    heated = tempers(setup.rule, setup.target)
    groups = [
        [
            setup.request(
                ids, samplings, max_new_tokens, SampleKey(chosen, i), stop=stops, tempers=heated, logprobs=logprobs
            )
            for i in range(n)
        ]
        for ids, chosen in zip(texts, seeds, strict=True)
    ]
    rows = max(n, min(n * len(texts), ROWS))
    scheduler = setup.scheduler(rows, max(map(len, texts)) + max_new_tokens, reuse=True)
    for group in groups:
        scheduler.add(group)
    scheduler.admit()
    for request in (request for group in groups for request in group):
        request.trace.start_seconds = time.perf_counter() - began
    return scheduler, groups
