"""The one set-up of every entry point: resolve names and settings to models, rule, tuner, requests and scheduler."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftproof import couple
from draftproof import lossy as lossy_rules
from draftproof import verify as verifiers
from draftproof.draft import Tree
from draftproof.draws import DRAWS, Draw
from draftproof.engine import graph
from draftproof.engine.arguments import Drafts, Named, suited
from draftproof.engine.eager.method import method_of
from draftproof.engine.eager.stepper import EagerStepper
from draftproof.engine.request import Request, SampleKey
from draftproof.engine.scheduler import Scheduler, Stepper
from draftproof.engine.trace import Trace, shape_name
from draftproof.engine.tuning import LONGEST, Auto, Fixed, Pace, Tuner, assumed, hope, tuned
from draftproof.errors import DraftproofError
from draftproof.models import drafter, load
from draftproof.models.base import Model, check_model, default_sampling, facts
from draftproof.models.drafters.fallback import Fallback
from draftproof.models.drafters.prediction import Prediction
from draftproof.models.drafters.shared_tokens import fit
from draftproof.noise import check_seed
from draftproof.rule import Rule
from draftproof.sampling import Sampling

CHAIN = Tree.chain(5)  # where no tuner chooses the length
PREDICTED = 0.9  # prior acceptance of a token that the caller predicts

# Where no rule is named, the first of these that takes the draft verifies it. Of one path block verification accepts
# the most, of separate paths csbv does, and traversal takes any tree (docs/acceptance.md). The others are for ways of
# drawing, and for several drafters, that these three do not take.
PREFERRED = ("block", "csbv", "traversal", "sbv", "sbv_plan", "top_plus_one", "recursive", "match")
PREFERRED_ON_GPU = ("block", "traversal", *PREFERRED[3:])  # csbv does not fit into a CUDA graph


@dataclass(frozen=True)
class Setup:
    """Target, drafters, rule, and the tuner that chooses what is drafted."""

    target: Model
    drafts: tuple[Model, ...]
    rule: Rule
    tuner: Tuner
    draw: Draw
    per_request: bool = False  # every request tunes the length of its own chain, within the tuner's
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
            chosen_for = "" if rule.name == PREFERRED[0] else _reason(tree, draw, len(drafts))
        if len(drafts) > 1 and not rule.mixes:
            raise DraftproofError(f"{rule.name!r} takes one drafter only: for several use recursive or importance")
        heated = tempers(rule, host) if callable(tempers) else tempers
        tuner, per_request = choose_tuner(rule, drafts, tree, repeatable, heated)
        drawn = choose_draw(rule, tuner.example, draw)
        return Setup(host, drafts, rule, tuner, drawn, per_request, compile, chosen_for)

    def suited(self, sampling: Sampling | None, draft_sampling: Sampling | None = None) -> tuple[Sampling, Sampling]:
        """The samplings of target and draft, with the target's own end tokens; None stands for the target's own."""
        chosen = suited(default_sampling(self.target) if sampling is None else sampling, self.target)
        return chosen, suited(draft_sampling or chosen, self.target)

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
    ) -> Request:
        """Create a request.

        stopping      another stopping criterion, checked after every token
        tempers       the temperature of its draft tokens may be tuned
        detokenize    false where only token ids are needed
        logprobs      report each token's logprob, and so many of the likeliest tokens there
        prediction    what the text is expected to be, for a set-up that `predicts`
        speculate     false: nothing is drafted for this text
        """
        tuner: Tuner | None = None
        if not speculate:
            tuner = Fixed(Tree.chain(0))
        elif self.per_request and not self.uses_graph(samplings, logprobs=logprobs):  # a graph has one length for all
            expected = PREDICTED if prediction else hope(self.drafts)
            tuner = Auto("chain", assumed(self.target, self.drafts), tempers, expected)
        drafter = " + ".join(draft.name for draft in self.drafts) if speculate else ""
        return Request(
            prompt,
            *samplings,
            max_new_tokens,
            key,
            Trace(self.rule.name, drafter or "none", self.rule.notice, chosen_for=self.chosen_for),
            context=self.target.context,
            tokenizer=self.target.tokenizer if detokenize else None,
            stop=stop,
            stopping=stopping,
            tuner=tuner,
            # saves work where the text does not depend on the draft's length, or is not repeatable in any case
            cuts_drafts=self.rule.name in couple.COUPLINGS or self.tuner.tunes,
            top_logprobs=logprobs,
            prediction=prediction,
            setup=self,
        )

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
        capacity = min(length, self.target.context or length) + self.tuner.size
        if self.serves_by_graph(request, rows):
            return self._graph_stepper(rows, capacity, reuse)
        return self._eager_stepper(rows, capacity, kept)

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


def asked_shape(tree: Tree | Auto | str | None) -> Tree | None:
    """The shape that the caller asks for; None where it is tuned."""
    if isinstance(tree, Auto):
        return tree.example
    if isinstance(tree, str) and tree != "auto":
        return Tree.parse(tree)
    return tree if isinstance(tree, Tree) else None


def _reason(tree: Tree | Auto | str | None, draw: str | None, drafters: int) -> str:
    """What of a draft the default rule does not take, as the summary names it."""
    if drafters > 1:
        return "several drafters"
    if isinstance(tree, Tree):
        return shape_name(tree)
    return tree if isinstance(tree, str) and tree != "auto" else f"{draw} draws" if draw else "trees"


def choose_rule(verify: str, lossy: str | None) -> Rule:
    """The exact rule of that name, or the lossy one if given; for "auto" the default rule."""
    if not isinstance(verify, str):
        raise DraftproofError(f"verify must be the name of a rule, such as 'block', not {verify!r}")
    if not isinstance(lossy, str | None):
        raise DraftproofError(f"lossy must be the name of a rule, such as 'lenience:0.8', not {lossy!r}")
    if lossy is not None:
        if verify != "auto":
            raise DraftproofError(f"verify={verify!r} and lossy={lossy!r} name different rules: give only one of them")
        return lossy_rules.get(lossy)
    name = PREFERRED[0] if verify == "auto" else verify
    return couple.COUPLINGS[name] if name in couple.COUPLINGS else verifiers.get(name)


def best_rule(shape: Tree | None, draw: str | None = None, drafters: int = 1, device: str = "cpu") -> Rule:
    """The preferred rule for drafts of this shape (None: tuned), so drawn, by so many drafters.

    >>> best_rule(Tree.chain(5)).name, best_rule(Tree.paths(4, 5)).name, best_rule(Tree.best(20, 5)).name
    ('block', 'csbv', 'traversal')
    """
    order = PREFERRED_ON_GPU if device == "cuda" else PREFERRED
    return next(_taking(order, shape or CHAIN, draw, drafters), verifiers.get(PREFERRED[0]))


def _taking(order: Sequence[str], shape: Tree, draw: str | None = None, drafters: int = 1) -> Iterator[Rule]:
    """The rules that take such drafts."""
    for rule in map(verifiers.get, order):
        if rule.accepts(shape) and (draw is None or draw in rule.draws) and (drafters < 2 or rule.mixes):
            yield rule


def choose_tuner(
    rule: Rule, drafts: Sequence[Any], tree: Tree | Auto | str | None, repeatable: bool, tempers: bool
) -> tuple[Tuner, bool]:
    """The tuner for a tree or "auto", and whether each request tunes its own length within it.

    To be repeatable, a text must not depend on the clock or on its neighbours. A chain's nodes have the same noise
    however long it is, so requests may cut it as they like; shapes of other kinds are then fixed unless "auto" is
    given. The text of a coupling does not depend on the shape at all.
    """
    if not drafts:
        return Fixed(Tree.chain(0)), False
    if isinstance(tree, str) and tree != "auto":
        tree = Tree.parse(tree)
    if isinstance(tree, Tree):
        return Fixed(tree), False
    if isinstance(tree, Auto):
        return tree, False
    if tree not in (None, "auto"):
        raise DraftproofError(f"unknown tree {tree!r}: use a Tree, such as Tree.chain(5), or 'auto'")
    if repeatable and rule.trees == "chain":
        return Fixed(Tree.chain(LONGEST)), True
    if repeatable and tree is None and rule.name not in couple.COUPLINGS:
        return Fixed(CHAIN), False
    return tuned(rule.trees, drafts, tempers), False


def may_temper(rule: Rule, sampling: Sampling) -> bool:
    """Whether the draft's temperature may be tuned: exact rules allow it, and there is a temperature to change."""
    return rule.exact and not callable(sampling.temperature) and sampling.temperature > 0


def choose_draw(rule: Rule, tree: Tree, name: str | None) -> Draw:
    """The named draw, or the one with the most acceptance among those the rule is exact for."""
    tree.check()
    if rule.name in couple.COUPLINGS:
        if name is not None:
            raise DraftproofError(f"{rule.name!r} draws its guesses from shared noise: leave `draw` out")
        return DRAWS["iid"]  # not used: the coupling draws
    if not rule.accepts(tree):
        others = ", ".join([other.name for other in _taking(PREFERRED, tree, name)][:3])
        raise DraftproofError(
            f"verifier {rule.name!r} works on {rule.trees} drafts only: choose such a tree, or leave the rule out or "
            f"name one for this tree ({others})"
        )
    if name is None:
        order = ("iid", "distinct", "plan", "top", "fixed")  # all but the last are the same on a chain
        order = order if tree.is_chain else ("plan", "distinct", "top", "iid", "fixed")
        name = next(draw for draw in order if draw in rule.draws)
    if name not in rule.draws:
        exact = ", ".join(sorted(rule.draws))
        raise DraftproofError(f"verifier {rule.name!r} is not exact for {name!r} draws: use {exact}")
    return DRAWS[name]
