"""generate() and stream(): text from a target model, drafted cheaply, verified exactly."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from draftproof import couple
from draftproof import lossy as lossy_rules
from draftproof import verify as verifiers
from draftproof.couple import Coupling
from draftproof.draft import Tree, Verifier
from draftproof.draws import DRAWS, Draw
from draftproof.engine.arguments import (
    Drafts,
    Named,
    Prompt,
    Settings,
    check_model,
    check_names,
    check_text,
    encode,
    suited,
)
from draftproof.engine.detokenize import Piece
from draftproof.engine.eager.batch import Batch
from draftproof.engine.eager.rows import Member
from draftproof.engine.eager.step import Rule
from draftproof.engine.graph import runner as fused
from draftproof.engine.graph.runner import FusedBatch
from draftproof.engine.request import Output, Request
from draftproof.engine.trace import Trace
from draftproof.engine.tuning.estimates import LONGEST
from draftproof.engine.tuning.lengths import Pace
from draftproof.engine.tuning.shapes import Auto, assumed, hope, trees_of, tuned
from draftproof.errors import DraftproofError, whole
from draftproof.lossy import Lossy
from draftproof.models import drafter, load
from draftproof.models.base import Model
from draftproof.models.drafters.shared_tokens import fit
from draftproof.noise import check_seed
from draftproof.sampling import Sampling

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing itself from Python 3.11 on


@overload
def generate(target: Named, prompt: Prompt, *, n: None = None, **settings: Unpack[Settings]) -> Output: ...


@overload
def generate(target: Named, prompt: Prompt, *, n: int, **settings: Unpack[Settings]) -> list[Output]: ...


def generate(
    target: Named, prompt: Prompt, *, n: int | None = None, **settings: Unpack[Settings]
) -> Output | list[Output]:
    """One text, or a list of `n` independent ones; takes the settings of `prepare`.

    The n samples share the computation of the prompt and of everything their texts have in common; their tokens are
    drawn with noise of their own, so they are independent.

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
    batch, requests = prepare(target, prompt, whole("n", n), **settings)
    while not batch.is_finished:
        batch.step()
    return [request.output for request in requests]


def stream(target: Named, prompt: Prompt, **settings: Unpack[Settings]) -> Stream:
    """Text piece by piece, as it is made; `.output` holds the whole once it is finished. Settings: see `prepare`."""
    check_names(settings)
    batch, (request,) = prepare(target, prompt, 1, **settings)
    return Stream(batch, request)


class Stream:
    """Iterate for pieces of text; read `.output` afterwards."""

    def __init__(self, batch: Batch | FusedBatch, request: Request) -> None:
        self._batch, self._request = batch, request
        self._pieces = self._run()

    def __iter__(self) -> Iterator[Piece]:
        return self._pieces

    def __next__(self) -> Piece:
        return next(self._pieces)

    def _run(self) -> Iterator[Piece]:
        while not self._batch.is_finished:
            for _, pieces in self._batch.step():
                yield from pieces

    @property
    def output(self) -> Output:
        if not self._request.finish:
            raise DraftproofError("the text is not finished: iterate to the end before reading `.output`")
        return self._request.output


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
) -> tuple[Batch | FusedBatch, list[Request]]:
    """A batch with n requests for one prompt, everything checked.

    target          a model, or a name for `draftproof.models.load`
    prompt          words (put through the model's chat template if it has one and `chat` is true), chat messages, or
                    token ids, taken as they are
    draft           a model, a name of `draftproof list`, a list of those (sibling k is guessed by the k-th), or None;
                    "auto" is a trained head where there is one for the target
    verify          a name of `draftproof list`; with "gumbel" the text depends on target and seed alone
    lossy           give up exactness for a rule of `draftproof.lossy` such as "lenience:0.8"; the trace says so
    tree            shape of the guesses, or its name ("chain:5"); "auto", the default, tunes it step by step and stops
                    guessing where that does not pay; an `Auto` passed to several calls keeps what it has learned
    draw            how siblings are drawn ("iid", "distinct", "fixed"); by default what suits verifier and tree
    sampling        what law the text follows; `draft_sampling` shapes the guesses only and never changes that law
    seed            same seed, settings and machine: same text, and shapes are tuned by what the text itself shows. If
                    none is given, one is drawn, and shapes are tuned by the clock too: faster, but not to be repeated
    compile         on a GPU, compile both models first; those of the Llama family are faster without it
    """
    max_new_tokens = whole("max_new_tokens", max_new_tokens)
    stops = check_text(stop, sampling, draft_sampling)
    target, drafts, rule = resolve(target, draft, verify, lossy)
    sampling = suited(sampling or Sampling(), target)
    heated = draft_sampling is None and tempers(rule, sampling)
    shape, paced = choose_shape(rule, drafts, tree, seed is not None, heated)
    seed = secrets.randbits(63) if seed is None else check_seed(seed)
    ids = encode(target, prompt, chat)
    longest = len(ids) + max_new_tokens
    capacity = min(longest, target.context or longest) + shape.size
    samplings = sampling, suited(draft_sampling or sampling, target)
    batch = open_batch(
        target, drafts, rule, shape, samplings, n, capacity, draw=draw, compile=compile, paced=paced, again=True
    )
    requests = [
        Request(
            target,
            ids,
            *samplings,
            max_new_tokens,
            stops,
            Member(seed, request),
            new_trace(rule, drafts),
            own_pace(target, drafts, heated) if paced and isinstance(batch, Batch) else None,
        )
        for request in range(n)
    ]
    batch.add(requests)
    return batch, requests


def resolve(target: Named, draft: Drafts, verify: str, lossy: str | None) -> tuple[Model, list[Model], Rule]:
    """Who writes, who guesses and who decides, from their names."""
    rule = choose_rule(verify, lossy)  # a wrong name should not wait for a model to load
    target = load(target) if isinstance(target, str | Path) else target
    named: Any = [] if draft is None else draft if isinstance(draft, list | tuple) else [draft]
    for one, what in [(target, "target"), *((one, "draft") for one in named if not isinstance(one, str | Path))]:
        check_model(one, what)
    found = [drafter(one, target) if isinstance(one, str | Path) else fit(target, one) for one in named]
    drafts: list[Model] = [one for one in found if one is not None]
    if len(drafts) > 1 and not (isinstance(rule, Verifier) and rule.mixes):
        raise DraftproofError(f"{rule.name!r} takes guesses of one drafter: for several use recursive or importance")
    return target, drafts, rule


def new_trace(rule: Rule, drafts: Sequence[Model]) -> Trace:
    """An empty one, for a text of this rule and these drafters."""
    guessers = " + ".join(one.name for one in drafts) or "none"
    return Trace(rule.name, guessers, rule.notice if isinstance(rule, Lossy) else "")


def own_pace(target: Model, drafts: Sequence[Model], tempers: bool = False) -> Auto:
    """For a text that decides by itself how far it is drafted."""
    return Auto("chain", assumed(target, drafts), tempers, hope(drafts))


def open_batch(
    target: Model,
    drafts: Sequence[Model],
    rule: Rule,
    shape: Tree | Auto,
    samplings: tuple[Sampling, Sampling],
    rows: int,
    capacity: int,
    *,
    draw: str | None = None,
    compile: bool = False,
    paced: bool = False,
    again: bool = False,
) -> Batch | FusedBatch:
    """Rows for requests that are sampled like this (target, draft): fused where that is possible, else general.

    again     for texts that come at once and are written to their end: where those before them were, if that is free
    """
    way = choose_draw(rule, shape.example if isinstance(shape, Auto) else shape, draw)
    fixed = fixed_shape(rule, shape, paced, rows)
    if fused.fits(target, drafts, rule.name, fixed, samplings):
        pace = Pace(hope(drafts)) if isinstance(shape, Auto) else None
        make = fused.reopen if again else FusedBatch
        return make(target, drafts[0] if drafts else None, rule.name, fixed, rows, capacity, compile, pace)
    return Batch(target, drafts, rule, shape, way, rows, capacity)


def fixed_shape(rule: Rule, shape: Tree | Auto, paced: bool, rows: int) -> Tree:
    """What the fused step is recorded for: what is tuned elsewhere is a chain of five there, or a tree as deep.

    A large target reads some 64 tokens hardly slower than one.
    """
    if not (isinstance(shape, Auto) or paced):
        return shape
    return Tree.best(max(64 // rows - 1, 5), 5) if rule.name == "traversal" else Tree.chain(5)


def choose_rule(verify: str, lossy: str | None) -> Rule:
    """The exact rule of that name, or the lossy one that was asked for in so many words."""
    if not isinstance(verify, str):
        raise DraftproofError(f"verify must be the name of a rule, such as 'block', not {verify!r}")
    if not isinstance(lossy, str | None):
        raise DraftproofError(f"lossy must be the name of a rule, such as 'lenience:0.8', not {lossy!r}")
    if lossy is not None:
        if verify != "block":
            raise DraftproofError(f"verify={verify!r} and lossy={lossy!r} name different rules: give one of them")
        return lossy_rules.get(lossy)
    return couple.COUPLINGS[verify] if verify in couple.COUPLINGS else verifiers.get(verify)


def choose_shape(
    rule: Rule, drafts: Sequence[object], tree: Tree | Auto | str | None, seeded: bool, tempers: bool
) -> tuple[Tree | Auto, bool]:
    """The shape asked for, and whether each request sets its own pace within it.

    With a seed the text must not depend on the clock or on its neighbours. A chain's nodes have the same names however
    long it is, so requests may cut it as they like; shapes of other kinds are then fixed unless "auto" is asked for. A
    coupling's text does not depend on the shape at all.
    """
    if not drafts:
        return Tree.chain(0), False
    if isinstance(tree, str) and tree != "auto":
        tree = Tree.parse(tree)
    if isinstance(tree, Tree | Auto):
        return tree, False
    if tree not in (None, "auto"):
        raise DraftproofError(f"unknown tree {tree!r}: use a Tree, such as Tree.chain(5), or 'auto'")
    trees = trees_of(rule)
    if seeded and trees == "chain":
        return Tree.chain(LONGEST), True
    if seeded and tree is None and not isinstance(rule, Coupling):
        return Tree.chain(5), False
    return tuned(rule, drafts, tempers), False


def tempers(rule: Rule, sampling: Sampling) -> bool:
    """Whether guesses may be drawn hotter than asked: exact rules allow it, and there is a temperature to change."""
    return not (isinstance(rule, Lossy) or callable(sampling.temperature)) and sampling.temperature > 0


def choose_draw(rule: Rule, tree: Tree, name: str | None) -> Draw:
    """The named way of drawing siblings, or the one that finds most among those the rule is exact for."""
    tree.check()
    if isinstance(rule, Coupling):
        if name is not None:
            raise DraftproofError(f"{rule.name!r} draws its guesses from the shared noise: leave `draw` out")
        return DRAWS["iid"]  # not used: the coupling draws
    # lossy rules take what the token rule takes: chains drawn from q
    verifier = verifiers.get("token") if isinstance(rule, Lossy) else rule
    if not verifier.accepts(tree):
        raise DraftproofError(f"verifier {rule.name!r} works on {verifier.trees} drafts only: choose such a tree")
    if name is None:
        order = ("iid", "distinct", "plan", "top", "fixed")  # all but the last are the same on a chain
        order = order if tree.is_chain else ("plan", "distinct", "top", "iid", "fixed")
        name = next(d for d in order if d in verifier.draws)
    if name not in verifier.draws:
        exact = ", ".join(sorted(verifier.draws))
        raise DraftproofError(f"verifier {verifier.name!r} is not exact for {name!r} draws: use {exact}")
    return DRAWS[name]
