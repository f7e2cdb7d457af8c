"""tree="auto": every step's shape is chosen from the steps before it, and guessing stops where it does not pay.

Times of calls and the noise-free acceptance of past steps (learn.py) say which shape brings most tokens a second. Where
none beats plain sampling the drafter is not even asked; it is tried again after pauses that grow, as far as a small
budget allows. Exact: a step's shape and draft temperature depend on past steps only, never on the draft at hand.

Shapes that depend on the clock make a text that its seed alone cannot repeat. So a request with a seed of its own keeps
an `Auto` of its own, with assumed costs (`Nominal`): its text depends on nothing but itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from draftproof.draft import Tree
from draftproof.engine.trace import Step
from draftproof.engine.tuning.estimates import LONGEST, Clock, Costs, Nominal, Survival, Temper
from draftproof.engine.tuning.tuner import StepReport
from draftproof.models.base import Model, facts, kept, taps
from draftproof.theory import plan

WIDTHS = (1, 2, 4, 8)
MOST = 33  # nodes of a tree
PLAIN = Tree.chain(0)
MARGIN = 0.02  # guessing must gain that much, or it is not worth the risk
FIRST = 4  # guesses to begin with, if there is hope
PATIENCE = 8  # steps that hope counts for
SLACK = 0.96  # of the best length's gain, for which a longer one is taken where much is hoped for
LOSS = 1.5  # plain steps' time that hope may cost, before a drafter that was hoped for is given up
PROBE = 2  # steps with guesses that decide whether it pays
PAUSE, LONGEST_PAUSE = 8, 256  # plain steps between probes
BUDGET = 0.015  # share of all time that probes may lose
REFRESH = 64  # steps after which plain sampling, or another width, is measured again


class Choice(NamedTuple):
    """A shape and how many times the speed of plain sampling it promises."""

    tree: Tree
    gain: float


class Auto:
    """A Tuner that learns which shape is fastest; pass one to several calls to keep what it has learned."""

    tunes = True
    size = MOST  # what a session must have room for

    def __init__(
        self,
        trees: str,
        costs: Costs | None = None,
        tempers: bool = False,
        hope: float = Survival.START,
        past: Past | None = None,
    ) -> None:
        """`trees`: what the rule accepts, as a Verifier says it; `tempers`: tune the draft's temperature as well.

        hope      chance of a first guess before any was seen; above one half guessing begins once the prompt is read
        past      what texts before this one have taught about chains, and this one will teach
        """
        self.trees = trees
        self._hopeful = hopeful = hope > 0.5
        self.costs: Costs = costs or (past.clock if past else Clock(1 if hopeful else 3))
        self.seen = {width: Survival(hope) for width in ((1,) if trees == "chain" else WIDTHS)}
        if past is not None:
            self.seen[1] = past.survival
        elif hopeful:
            self.seen[1] = Survival(hope, PATIENCE, FIRST // 2)
        self.temper = (past.temper if past else Temper()) if tempers else None
        self.rows = 1
        self._probing = PROBE  # steps with guesses still to be made, whether they pay or not
        self._width = 1  # of the probe
        self._pause = PAUSE
        self._wait = 0  # plain steps until the next probe
        self._lost = self._spent = 0.0  # seconds: by guessing, against plain sampling; in all
        self._since = 0  # steps since plain sampling was measured
        self._choice: Choice | None = None
        self.tree = PLAIN if hopeful else self._next()  # the call that reads the prompt says a token for nothing

    @property
    def example(self) -> Tree:
        """A shape of the kind that may be chosen."""
        return Tree.chain(2) if self.trees == "chain" else Tree.paths(2, 2)

    @property
    def factor(self) -> float:
        """On the temperature of the next step's guesses."""
        return 1.0 if self.temper is None or len(self.tree.children(0)) > 1 else self.temper.factor

    @property
    def wants_laws(self) -> bool:
        """Whether `learn` would look at the laws of the next step."""
        return self.temper is not None and self.temper.wants_laws and len(self.tree.children(0)) == 1

    def learn(self, report: StepReport) -> None:
        """Take note of a step: what it took, how far its draft tokens got, how hot they were drawn."""
        asked, sent, steps, seconds, fresh, laws = report
        self.rows = len(steps)
        depth, width = asked.depth[-1], len(asked.children(0))
        if not fresh:
            self.costs.add(self.rows * sent.size, depth, seconds)
            self._account(sent, depth, steps, sum(seconds.values()))
            self._since = 0 if sent.size == 1 or isinstance(self.costs, Nominal) else self._since + 1
        if depth:
            reached = [_reached(step) for step in steps]
            self.seen.setdefault(width, Survival()).add(depth, sent.depth[-1], reached)
            self._choice = None
            if sent.size > 1 and not fresh and self._probing:
                self._probing -= 1
                if not self._probing and self._hopeless:
                    self._off()
        if laws is not None and self.temper is not None:
            self.temper.learn(*laws)
        self.tree = self._next()

    def _account(self, sent: Tree, levels: int, steps: Sequence[Step], seconds: float) -> None:
        """What the step took, which is not what it should have taken, and what was lost by it; a hiccup is no loss."""
        plain = self.costs.call(self.rows)
        usual = self.costs.call(self.rows * sent.size) + self.costs.draft(levels)
        took = usual if isinstance(self.costs, Nominal) else min(seconds, 1.5 * usual)
        self._spent += took
        if levels:
            tokens = 1 + sum(step.expected for step in steps) / len(steps)
            self._lost = max(self._lost + min(took, usual) - tokens * plain, -10 * plain)

    def _next(self) -> Tree:
        """The shape of the next step."""
        if not self.costs.known:  # the first step reads the prompt, those after it tell what a plain one takes
            return Tree.chain(FIRST) if self._hopeful else PLAIN
        if self._probing:
            return self._best(self._width, least=1).tree
        if self._wait:
            self._wait -= 1
            if self._wait or not self._affordable(1):
                self._wait = max(self._wait, 1)
                return PLAIN
            return self._probe(1)
        if self._hopeless:
            return self._off()
        if self._hopeful and not self.costs.has(self.rows) and self.seen[1].seen >= FIRST:
            return PLAIN  # what is it that guessing is compared with?
        if self._since >= REFRESH:
            self._since = 0
            rare = min(self.seen, key=lambda width: self.seen[width].seen)
            return PLAIN if rare == 1 or not self._affordable(rare) else self._probe(rare)
        unseen = [width for width in WIDTHS if width in self.seen and not self.seen[width].seen]
        if unseen and self._affordable(unseen[0]):
            return self._probe(unseen[0], steps=1)
        chosen = self._chosen()
        return chosen.tree if chosen.tree.size > 1 or not self._hopeful else self._best(1, least=1).tree

    @property
    def _hopeless(self) -> bool:
        """Whether guessing has cost too much, or promises nothing; for hope to be given up it must have cost something
        too, and to cost too much takes longer: luck changes from step to step."""
        plain, pays = self.costs.call(self.rows), self._pays()
        if not self._hopeful:
            return not pays or self._lost > BUDGET * self._spent + plain
        return self._lost > (3 * LOSS if pays else LOSS) * plain

    def _probe(self, width: int, steps: int = PROBE) -> Tree:
        self._probing, self._width = steps, width
        self.seen[width].doubt()
        return self._best(width, least=1).tree

    def _off(self) -> Tree:
        """Plain steps for a while, longer each time."""
        self._wait, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return PLAIN

    def _affordable(self, width: int) -> bool:
        """Whether a probe's likely loss is within the budget."""
        tree, gain = self._best(width, least=1)
        took = self.costs.call(self.rows * tree.size) + self.costs.draft(tree.depth[-1])
        return self._lost + PROBE * took * max(1 - gain, 0.0) <= BUDGET * self._spent

    def _pays(self) -> bool:
        """Rare guesses gain little in all; where there is one, it must be worth it."""
        pays = self._chosen().gain >= 1 + MARGIN * self.seen[1].guessed
        if pays:
            self._pause = PAUSE
        return pays

    def _chosen(self) -> Choice:
        if self._choice is None:
            choices = [self._best(width) for width, seen in self.seen.items() if seen.seen or width == 1]
            if self.trees not in ("chain", "paths"):
                choices.append(self._best_tree())
            self._choice = max(choices, key=lambda choice: choice.gain)
        return self._choice

    def _best(self, width: int, least: int = 0) -> Choice:
        """The best length of so many paths, at most twice what was tried before, or one more where much is hoped for.

        Levels that are often left empty cost only as often as they are not. Where much is hoped for, the longest of the
        lengths that are about as good: a block of guesses passes sooner the longer it is, which short ones do not show.
        """
        seen, cost, rows = self.seen[width], self.costs, self.rows
        guessed, reached, deep = seen.guessed, seen.reached, seen.deep
        plain = cost.call(rows)
        tokens, seconds, before, asked = 1.0, plain, plain, 1.0
        choices = [Choice(PLAIN, 0.0 if least else 1.0)]
        further = seen.longest + 1 if self._hopeful else max(2 * seen.longest, 1)
        for length in range(1, min(further, LONGEST, (MOST - 1) // width) + 1):
            call = cost.call(rows * (1 + width * length))
            tokens += guessed * reached[length - 1]
            seconds += guessed * deep[length - 1] * (call - before)
            seconds += asked * (cost.draft(length) - cost.draft(length - 1))
            before, asked = call, guessed * deep[length - 1]
            choices.append(Choice(Tree.paths(width, length), tokens * plain / seconds))
        best = max(choices, key=lambda choice: choice.gain)
        if self._hopeful and best.tree.size > 1:
            best = next(choice for choice in reversed(choices) if choice.gain >= SLACK * best.gain)
        return best

    def _best_tree(self) -> Choice:
        """The tree that siblings' acceptance at the first level promises most for."""
        acc = plan.by_sibling({width: seen.reached[0] for width, seen in self.seen.items() if seen.seen or width == 1})
        sizes = {n: plan.Seconds(self.costs.call(self.rows * n)) for n in (1, 2, 3, 5, 9, 17, MOST)}
        made = plan.best_tree(acc, plan.Costs(plan.Seconds(self.costs.draft(6) / 6), sizes), most=MOST, depth=6)
        return Choice(made.tree, made.speedup)


class Past:
    """What is remembered from one text to the next: how long calls take, how far guesses get, how hot to draw them."""

    def __init__(self, hope: float) -> None:
        self.clock, self.temper = Clock(1), Temper()
        self.survival = Survival(hope, PATIENCE, FIRST // 2, fade=0.98)  # of several texts


def tuned(trees: str, drafts: Sequence[Model], tempers: bool) -> Auto:
    """For a text whose shapes may be tuned by the clock. A trained head remembers the texts before it."""
    expected, past = hope(drafts), None
    if len(drafts) == 1 and taps(drafts[0]) and (memory := kept(drafts[0])) is not None:
        past = memory.setdefault("tuning", Past(expected))
    return Auto(trees, tempers=tempers, hope=expected, past=past)


def hope(drafts: Sequence[object]) -> float:
    """Chance of a first draft token, before any was seen: a trained drafter nearly always pays."""
    return 0.65 if any(facts(one).trained for one in drafts) else Survival.START


def assumed(target: Model, drafts: Sequence[Model]) -> Nominal:
    """Costs from what the models are: their sizes, and whether a GPU reads more tokens for nothing."""
    known = facts(target)
    drafting = max([0.002, *(facts(one).weights / known.weights for one in drafts)]) if known.weights else 0.1
    return Nominal(known.token_cost, drafting)


def _reached(step: Step) -> Sequence[float]:
    """P(accepted >= 1, 2, ...) of a step; rules that share their noise have no law to report."""
    return step.reached or (1.0,) * step.accepted
