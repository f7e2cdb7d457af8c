"""generate() and stream(): text from a target model, drafted cheaply, verified exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

from draftproof.draft import Tree
from draftproof.engine.arguments import Drafts, Named, Prompt, Settings, check_names, check_text, encode
from draftproof.engine.detokenize import Piece
from draftproof.engine.request import Output, Request, SampleKey
from draftproof.engine.scheduler import Scheduler
from draftproof.engine.setup import Setup, may_temper, new_seed
from draftproof.engine.tuning import Auto
from draftproof.errors import whole
from draftproof.sampling import Sampling

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on


@overload
def generate(target: Named, prompt: Prompt, *, n: None = None, **settings: Unpack[Settings]) -> Output: ...


@overload
def generate(target: Named, prompt: Prompt, *, n: int, **settings: Unpack[Settings]) -> list[Output]: ...


def generate(
    target: Named, prompt: Prompt, *, n: int | None = None, **settings: Unpack[Settings]
) -> Output | list[Output]:
    """Generate one text, or a list of `n` independent ones.

    The n samples share the computation of the prompt and of everything their texts have in common; their tokens are
    drawn with separate noise, so they are independent.

    target          a model, or a name for `draftproof.load`
    prompt          a string (put through the model's chat template if it has one and `chat` is true), chat messages, or
                    token ids, taken as they are
    draft           a model, a name of `draftproof list`, a list of those (the k-th drafts sibling k), or None; "auto"
                    is a trained head where there is one for the target
    verify          a name of `draftproof list`; with "gumbel" the text depends on target and seed alone
    lossy           give up exactness for a rule of `draftproof.lossy` such as "lenience:0.8"; the trace says so
    tree            shape of the draft, or its name ("chain:5"); "auto", the default, tunes it step by step and stops
                    drafting where that does not pay; an `Auto` passed to several calls keeps what it has learned
    draw            how siblings are drawn ("iid", "distinct", "fixed"); by default what suits verifier and tree
    sampling        what law the text follows
    draft_sampling  shapes the draft only and never changes that law; `sampling` by default
    max_new_tokens  the text also ends at an end token, a stop string, or where the context is full
    stop            one string or several, before which the text ends
    seed            same seed, settings and machine: same text, and shapes are tuned by what the text itself shows. If
                    none is given, one is drawn, and shapes are tuned by the clock too: faster, but not repeatable
    compile         on a GPU, compile both models first; those of the Llama family are faster without it

    >>> from draftproof.models.table import TableModel
    >>> coin = TableModel(lambda context: [0.5, 0.5])
    >>> generate(coin, [0], draft=coin, max_new_tokens=5, seed=1).tokens
    [1, 1, 0, 0, 0]
    """
    if n is None:
        writing = stream(target, prompt, **settings)
        for _ in writing:
            pass
        return writing.output
    check_names(settings)
    scheduler, requests = prepare(target, prompt, whole("n", n), **settings)
    while not scheduler.is_finished:
        scheduler.step()
    return [request.output for request in requests]


def stream(target: Named, prompt: Prompt, **settings: Unpack[Settings]) -> Stream:
    """Generate one text piece by piece; `.output` holds the text so far. Settings as in `generate`."""
    check_names(settings)
    scheduler, (request,) = prepare(target, prompt, 1, **settings)
    return Stream(scheduler, request)


class Stream:
    """Iterate for pieces of text; read `.output` afterwards."""

    def __init__(self, scheduler: Scheduler, request: Request) -> None:
        self._scheduler, self._request = scheduler, request
        self._pieces = self._run()

    def __iter__(self) -> Iterator[Piece]:
        return self._pieces

    def __next__(self) -> Piece:
        return next(self._pieces)

    def _run(self) -> Iterator[Piece]:
        while not self._scheduler.is_finished:
            for _, pieces in self._scheduler.step():
                yield from pieces

    @property
    def output(self) -> Output:
        """The text; before its end the text so far, with finish "cancelled"."""
        output = self._request.output
        return output if output.finish else output._replace(finish="cancelled")


def prepare(
    target: Named,
    prompt: Prompt,
    n: int = 1,
    *,
    draft: Drafts = "auto",
    verify: str = "block",
    lossy: str | None = None,
    tree: Tree | Auto | str | None = None,
    draw: str | None = None,
    sampling: Sampling | None = None,
    draft_sampling: Sampling | None = None,
    max_new_tokens: int = 128,
    stop: str | Sequence[str] | None = None,
    seed: int | None = None,
    chat: bool = True,
    compile: bool = False,
) -> tuple[Scheduler, list[Request]]:
    """A scheduler with n requests for one prompt, everything checked. The settings are those of `generate`."""
    max_new_tokens = whole("max_new_tokens", max_new_tokens)
    stops = check_text(stop, sampling, draft_sampling)
    controls = sampling or Sampling()
    setup = Setup.of(
        target,
        draft,
        verify=verify,
        lossy=lossy,
        tree=tree,
        draw=draw,
        repeatable=seed is not None,
        tempers=lambda rule: draft_sampling is None and may_temper(rule, controls),
        compile=compile,
    )
    samplings, chosen, ids = setup.suited(sampling, draft_sampling), new_seed(seed), encode(setup.target, prompt, chat)
    tempers = draft_sampling is None and may_temper(setup.rule, controls)
    requests = [
        setup.request(ids, samplings, max_new_tokens, SampleKey(chosen, i), stop=stops, tempers=tempers)
        for i in range(n)
    ]
    scheduler = setup.scheduler(n, len(ids) + max_new_tokens, reuse=True)
    scheduler.add(requests)
    scheduler.admit()
    return scheduler, requests
