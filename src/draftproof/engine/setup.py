"""The one set-up of every entry point: resolve names and settings to models, rule, tuner, requests and scheduler."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from draftproof import couple
from draftproof.draft import Tree
from draftproof.draws import Draw
from draftproof.engine import graph
from draftproof.engine.arguments import Drafts, Named, suited
from draftproof.engine.choices import (
    CHAIN,
    PREFERRED,
    asked_shape,
    best_rule,
    choose_draw,
    choose_rule,
    choose_tuner,
    chosen_reason,
)
from draftproof.engine.eager.goals import ROOM
from draftproof.engine.eager.method import method_of
from draftproof.engine.eager.stepper import EagerStepper
from draftproof.engine.memory import opened
from draftproof.engine.request import Request, SampleKey
from draftproof.engine.scheduler import Scheduler, Stepper
from draftproof.engine.trace import Trace
from draftproof.engine.tuning import Auto, Fixed, Pace, Tuner, assumed, hope, least, tuned
from draftproof.errors import DraftproofError
from draftproof.grammar import State
from draftproof.models import drafter, grammars, load
from draftproof.models.base import Model, check_model, default_sampling, facts, taps
from draftproof.models.drafters.fallback import Fallback
from draftproof.models.drafters.prediction import Prediction
from draftproof.models.drafters.shared_tokens import fit
from draftproof.noise import check_seed
from draftproof.rule import Rule
from draftproof.sampling import Sampling

PREDICTED = 0.9  # prior acceptance of a token that the caller predicts


@dataclass(frozen=True)
class Setup:
    """Target, drafters, rule, and the tuner that chooses what is drafted."""

    target: Model
    drafts: tuple[Model, ...]
    rule: Rule
    tuner: Tuner
    draw: Draw
    per_request: bool = False  # every request tunes the length of its own chain, within the tuner's
    together: Tuner | None = None  # of requests without a seed: by the clock, from what all of them have shown
    compile: bool = False  # on a GPU, compile both networks
    chosen_for: str = ""  # why the rule is not the default one, where none was named

    @staticmethod
    def of(
        target: Named,
        draft: Drafts = "auto",
        *,
        verify: str = "auto",
        lossy: str | None = None,
        tree: Tree | Auto | str | None = None,
        draw: str | None = None,
        repeatable: bool = True,
        tempers: bool | Callable[[Rule, Model], bool] = False,
        compile: bool = False,
    ) -> Setup:
        """Resolve names and settings, or raise.

        verify        a rule's name; "auto" is block, or where that does not take the draft the best rule that does
        repeatable    shapes must not depend on the clock or on neighbours: the same seed gives the same text
        tempers       the draft's temperature may be tuned; or a function of rule and target that says so
        """
        rule = choose_rule(verify, lossy)  # first, so that what is wrong fails before a model is loaded
        shape = asked_shape(tree) if any(one != "none" for one in _named(draft)) else None
        if shape is not None and (verify != "auto" or lossy is not None):
            choose_draw(rule, shape, draw)
        host, drafts = open_models(target, draft)
        chosen_for = ""
        if drafts and verify == "auto" and lossy is None:
            rule = best_rule(shape, draw, len(drafts), facts(host).device)
            chosen_for = "" if rule.name == PREFERRED[0] else chosen_reason(tree, draw, len(drafts))
        if len(drafts) > 1 and not rule.mixes:
            raise DraftproofError(f"{rule.name!r} takes one drafter only: for several use recursive or importance")
        heated = tempers(rule, host) if callable(tempers) else tempers
        tuner, per_request = choose_tuner(rule, drafts, tree, repeatable, heated)
        drawn = choose_draw(rule, tuner.example, draw)
        together = tuned(rule.trees, drafts, tempers=False) if per_request else None
        return Setup(host, drafts, rule, tuner, drawn, per_request, together, compile, chosen_for)

    @property
    def drafter(self) -> str:
        """The names of the drafters; "none" for plain sampling."""
        return " + ".join(draft.name for draft in self.drafts) or "none"

    def suited(self, sampling: Sampling | None, draft_sampling: Sampling | None = None) -> tuple[Sampling, Sampling]:
        """The samplings of target and draft, with the target's own end tokens; None stands for the target's own."""
        chosen = suited(default_sampling(self.target) if sampling is None else sampling, self.target)
        drafted = suited(draft_sampling or chosen, self.target)
        if drafted.grammar not in (None, chosen.grammar):
            raise DraftproofError(
                "draft_sampling has another grammar than the text: leave it out, the text's own is used"
            )
        return chosen, drafted if drafted.grammar == chosen.grammar else replace(drafted, grammar=chosen.grammar)

    def request(
        self,
        prompt: tuple[int, ...],
        samplings: tuple[Sampling, Sampling],
        max_new_tokens: int,
        key: SampleKey,
        *,
        stop: tuple[str, ...] = (),
        stopping: Callable[[Sequence[int]], bool] | None = None,
        tempers: bool = False,
        detokenize: bool = True,
        logprobs: int | None = None,
        prediction: tuple[int, ...] = (),
        speculate: bool = True,
        seeded: bool = True,
    ) -> Request:
        """Create a request.

        stopping      another stopping criterion, checked after every token
        tempers       the temperature of its draft tokens may be tuned
        detokenize    false where only token ids are needed
        logprobs      report each token's logprob, and so many of the likeliest tokens there
        prediction    what the text is expected to be, for a set-up that `predicts`
        speculate     false: nothing is drafted for this text
        seeded        false: nobody will ask for the same text again, so its drafts may be tuned by the clock
        """
        tuner: Tuner | None = None
        if not speculate:
            tuner = Fixed(Tree.chain(0))
        elif self.per_request and not self.uses_graph(samplings, logprobs=logprobs):  # a graph has one length for all
            expected = PREDICTED if prediction else hope(self.drafts)
            own = seeded or prediction or self.together is None
            # to learn the best temperature of a head, which is nearly right, takes longer than one text
            tempers = tempers and not any(map(taps, self.drafts))
            costs, lowest = assumed(self.target, self.drafts), least(self.drafts)
            tuner = Auto("chain", costs, tempers, expected, least=lowest) if own else self.together
        drafter = self.drafter if speculate else "none"
        return Request(
            prompt,
            *samplings,
            max_new_tokens,
            key,
            Trace(self.rule.name, drafter, self.rule.notice, chosen_for=self.chosen_for),
            context=self.target.context,
            tokenizer=self.target.tokenizer if detokenize else None,
            stop=stop,
            stopping=stopping,
            tuner=tuner,
            # saves work where the text does not depend on the draft's length, or is not repeatable in any case
            cuts_drafts=self.rule.name in couple.COUPLINGS or self.tuner.tunes or not seeded,
            top_logprobs=logprobs,
            prediction=prediction,
            setup=self,
            start=self._start(samplings[0]),
        )

    def _start(self, sampling: Sampling) -> State | None:
        """Where a text begins in its grammar; a grammar that cannot be used is refused here."""
        if sampling.grammar is None:
            return None
        return grammars.start(sampling.grammar, self.target, tuple(sampling.ends))

    def compiles(self, sampling: Sampling | None) -> Callable[[], State | None] | None:
        """What compiles the grammar of a request, where there is one that has not been compiled yet."""
        if not isinstance(sampling, Sampling) or sampling.grammar is None:
            return None
        chosen = suited(sampling, self.target)
        known = grammars.is_known(chosen.grammar, self.target, tuple(chosen.ends))
        return None if known else partial(self._start, chosen)

    def predicts(self) -> Setup:
        """The same for requests with a prediction, which is drafted first; the drafter has the tokens it says nothing
        about."""
        if len(self.drafts) > 1:
            raise DraftproofError("a prediction goes with one drafter: open the engine with one, or with none")
        parts = [Prediction(self.target.vocabulary), *self.drafts]
        drafts = (Fallback(parts) if len(parts) > 1 else parts[0],)
        tuner, per_request = (self.tuner, self.per_request)
        if not self.drafts:
            tuner, per_request = choose_tuner(self.rule, drafts, None, True, False)
        return replace(self, drafts=drafts, tuner=tuner, per_request=per_request)

    def scheduler(self, rows: int, length: int, *, reuse: bool = False, kept: int | None = None) -> Scheduler:
        """A scheduler for `rows` texts of up to `length` tokens.

        kept          how many ended texts to keep for prompts that begin the same; prompts are then read in parts while
                      other texts are written, which a server wants
        reuse         take the graphs that were captured for the target's last texts, if they are idle: for texts that
                      are added at once and generated to their end
        """
        return Scheduler(rows, Steppers(rows, length, reuse, kept))

    def stepper(self, request: Request, rows: int, length: int, reuse: bool, kept: int | None) -> Stepper:
        """A stepper for requests like this one."""
        longest, models = min(length, self.target.context or length), (self.target, *self.drafts)
        if self.serves_by_graph(request, rows):
            capacity = longest + self.tuner.size
            return opened(lambda: self._graph_stepper(rows, capacity, reuse), models, rows, capacity)
        constrained = request.start is not None or kept is not None  # where texts come and go, later ones may be
        capacity = longest + max(self.tuner.size, ROOM if constrained else 0)
        return opened(lambda: self._eager_stepper(rows, capacity, kept), models, rows, capacity)

    def serves_by_graph(self, request: Request, rows: int) -> bool:
        """Whether the graph stepper serves this request."""
        samplings = request.sampling, request.draft_sampling
        return self.uses_graph(samplings, rows, logprobs=request.top_logprobs)

    def uses_graph(self, samplings: tuple[Sampling, Sampling], rows: int = 1, *, logprobs: int | None = None) -> bool:
        """Whether the graph stepper can serve texts that are sampled like this (target, draft); it has no logprobs."""
        return logprobs is None and graph.fits(
            self.target, self.drafts, self.rule.name, self._captured(rows), samplings
        )

    def _eager_stepper(self, rows: int, capacity: int, kept: int | None) -> Stepper:
        method = method_of(self.rule, self.draw, self.target.vocabulary)
        return EagerStepper(self.target, self.drafts, method, self.tuner, rows, capacity, kept)

    def _graph_stepper(self, rows: int, capacity: int, reuse: bool) -> Stepper:
        tree = self._captured(rows)
        tuner: Tuner = Pace(tree, hope(self.drafts)) if self.tuner.tunes else Fixed(tree)
        kind = graph.GraphKind(self.drafts[0] if self.drafts else None, self.rule.name, tree, rows, self.compile)
        return (graph.reopen if reuse else graph.GraphStepper)(self.target, kind, capacity, tuner)

    def _captured(self, rows: int) -> Tree:
        """The shape to capture: the given tree; where it is tuned, a chain of five, or a tree as deep.

        A large target verifies about 64 tokens in hardly more time than one.
        """
        if not (self.tuner.tunes or self.per_request):
            return self.tuner.example
        return Tree.best(max(64 // rows - 1, 5), 5) if self.rule.name == "traversal" else CHAIN


class Steppers:
    """The steppers of a scheduler, each opened for the first request that needs it."""

    def __init__(self, rows: int, length: int, reuse: bool = False, kept: int | None = None) -> None:
        self.sizes = rows, length, reuse, kept
        self._opened: dict[tuple[int, bool], tuple[Setup, Stepper]] = {}  # by set-up, and whether by graph

    def __call__(self, request: Request) -> Stepper:
        setup = request.setup
        key = id(setup), setup.serves_by_graph(request, self.sizes[0])
        if key not in self._opened:
            self._opened[key] = setup, setup.stepper(request, *self.sizes)
        return self._opened[key][1]

    def of(self, setup: Setup) -> list[Stepper]:
        """The steppers that were opened for a set-up."""
        return [stepper for (one, _), (_, stepper) in self._opened.items() if one == id(setup)]

    def close(self, setup: Setup) -> None:
        """Free the steppers of a set-up."""
        self._opened = {key: opened for key, opened in self._opened.items() if key[0] != id(setup)}


def new_seed(seed: int | None) -> int:
    """The given seed, checked, or a random one."""
    return secrets.randbits(63) if seed is None else check_seed(seed)


def open_models(target: Named, draft: Drafts) -> tuple[Model, tuple[Model, ...]]:
    """Load target and drafters, where they are given by name."""
    host = load(target) if isinstance(target, str | Path) else target
    named = _named(draft)
    check_model(host, "target")
    for model in named:
        if not isinstance(model, str | Path):
            check_model(model, "draft")
    drafts = [drafter(model, host) if isinstance(model, str | Path) else fit(host, model) for model in named]
    return host, tuple(draft for draft in drafts if draft is not None)


def _named(draft: Drafts) -> list[Any]:
    """The drafters as a list."""
    return [] if draft is None else [*draft] if isinstance(draft, list | tuple) else [draft]
