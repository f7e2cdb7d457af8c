"""tree="auto": tune the shape of every step from the steps before it, and stop drafting where it does not pay.

The shape with the most tokens per second follows from times and noise-free acceptance of past steps (estimates.py).
Where none beats plain sampling the drafter is not called; it is tried again after growing pauses, within a small
budget. What pays for few texts may not for many: the shape is chosen for as many as the step has, and gains and losses
are counted for batches of each size apart. Exact: a step's shape and draft temperature depend on past steps only, never
on the draft at hand.

If shapes depend on the clock, the seed alone cannot reproduce a text. So a request with a seed has an `Auto` of its
own, with assumed costs (`Nominal`), and its text depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch

from draftproof.draft import Tree
from draftproof.engine.trace import Step
from draftproof.engine.tuning.estimates import BATCH, LONGEST, Clock, Nominal, StepCosts, Survival, Temper
from draftproof.engine.tuning.tuner import StepReport
from draftproof.models.base import Model, facts, kept, taps
from draftproof.theory import plan

WIDTHS = (1, 2, 4, 8)
MOST = 33  # nodes of a tree
PLAIN = Tree.chain(0)
MARGIN = 0.02  # gain that drafting must promise, ...
BATCH_MARGIN = 0.1  # ... and by a trained drafter in a batch: it has the prompts of texts that join to read, too
FIRST = 4  # draft tokens to begin with, for a trained drafter
LEAST = 0.3  # chance of being reached that a draft token must have, for a trained drafter on a CPU
PATIENCE = 8  # weight of the prior in steps, for a trained drafter
SLACK = 0.96  # share of the best gain at which a longer draft is preferred, for a trained drafter
LOSS = 1.5  # plain steps' time that a trained drafter may lose before drafting stops
PROBE = 2  # steps with a draft that test whether it pays
PAUSE, LONGEST_PAUSE = 8, 256  # plain steps between probes
BUDGET = 0.015  # share of all time that probes may lose, ...
BATCH_BUDGET = 0.005  # ... and in a batch: its rows have also to be caught up with
CREDIT = 10  # plain steps' time of gains that may be lost again; one in a batch, where luck is no reason
REFRESH = 64  # steps after which plain sampling, or another width, is measured again
CROWD = 6  # texts for each thread of a CPU, from which on one token of each keeps it busy


class Choice(NamedTuple):
    """A shape and its estimated speed relative to plain sampling."""

    tree: Tree
    gain: float


@dataclass
class Account:
    """Gains and losses of drafting in batches of about one size, and whether it is off there."""

    probing: int  # probing steps still to be made, whether they pay or not
    pause: int = PAUSE
    wait: int = 0  # plain steps until the next probe
    lost: float = 0.0  # seconds, against plain sampling
    spent: float = 0.0  # seconds in all
    since: int = 0  # steps since plain sampling was measured


class Auto:
    """A Tuner that learns which shape is fastest; pass one to several calls to keep what it has learned."""

    tunes = True
    size = MOST  # nodes that a session must have room for

    def __init__(
        self,
        trees: str,
        costs: StepCosts | None = None,
        tempers: bool = False,
        hope: float = Survival.START,
        past: Past | None = None,
        crowd: float = inf,
        least: float = 0.0,
    ) -> None:
        """`trees`: the shapes that the rule accepts (Verifier.trees); `tempers`: tune the draft's temperature too.

        hope      prior acceptance of a first guess; above one half drafting begins right after the prompt
        past      estimates about chains that are shared with earlier and later texts
        least     see `Tuner`
        crowd     so many texts or more are not drafted for, nor is it tried whether that would pay
        """
        self.trees = trees
        self._hopeful = hopeful = hope > 0.5
        self.costs: StepCosts = costs or (past.clock if past else Clock(1 if hopeful else 3))
        self.seen = {width: Survival(hope) for width in ((1,) if trees == "chain" else WIDTHS)}
        if past is not None:
            self.seen[1] = past.survival
        elif hopeful:
            self.seen[1] = Survival(hope, PATIENCE, FIRST // 2)
        self.temper = (past.temper if past else Temper()) if tempers else None
        self.rows, self.crowd, self.least = 1, crowd, least
        self._accounts: dict[int, Account] = {}  # by the binary digits of the number of rows
        self._width = 1  # of the probe
        self._choice: Choice | None = None
        self.tree = PLAIN if hopeful else self._next()  # the prefill call yields a token anyway

    @property
    def example(self) -> Tree:
        """A shape of the kind that may be chosen."""
        return Tree.chain(2) if self.trees == "chain" else Tree.paths(2, 2)

    @property
    def factor(self) -> float:
        """Factor on the temperature of the next step's draft."""
        return 1.0 if self.temper is None or len(self.tree.children(0)) > 1 else self.temper.factor

    @property
    def wants_laws(self) -> bool:
        """Whether `learn` would look at the laws of the next step."""
        return self.temper is not None and self.temper.wants_laws and len(self.tree.children(0)) == 1

    @property
    def _account(self) -> Account:
        """Of batches like the present one: 2, 3 to 5, 6 to 11, 12 to 23 rows, and so on.

        A large one begins without drafts, and any if others have shown what to expect.
        """
        size = (4 * self.rows // 3).bit_length()
        if size not in self._accounts:
            self._accounts[size] = Account(0 if self.seen[1].seen or self.rows >= BATCH else PROBE)
        return self._accounts[size]

    def expect(self, rows: int, joining: bool) -> None:
        """Choose again if the batch is not what it was; a call that reads a prompt yields a token anyway, and its
        client waits for that. Where costs are assumed, a text depends on its own steps alone."""
        if isinstance(self.costs, Nominal):
            return
        if rows != self.rows:
            self.rows, self._choice = rows, None
            self.tree = self._next()
        if joining:
            self.tree = PLAIN

    def learn(self, report: StepReport) -> None:
        """Record a step: its times, how far its draft tokens got, and its laws."""
        asked, sent, steps, seconds, fresh, laws = report
        fresh = fresh and not isinstance(self.costs, Nominal)  # assumed costs are the same with prefill
        self._choice = self._choice if self.rows == len(steps) else None
        self.rows = len(steps)
        account = self._account
        depth, width = asked.depth[-1], len(asked.children(0))
        if not fresh:
            self.costs.add(self.rows * sent.size, depth, seconds, self.rows)
            self._charge(sent, depth, steps, sum(seconds.values()))
            account.since = 0 if sent.size == 1 or isinstance(self.costs, Nominal) else account.since + 1
        if depth:
            reached = [_reached(step) for step in steps]
            self.seen.setdefault(width, Survival()).add(depth, sent.depth[-1], reached)
            self._choice = None
            if sent.size > 1 and not fresh and account.probing:
                account.probing -= 1
                if not account.probing and self._hopeless:
                    self._off()
        if laws is not None and self.temper is not None:
            self.temper.learn(*laws)
        self.tree = self._next()

    def _charge(self, sent: Tree, levels: int, steps: Sequence[Step], seconds: float) -> None:
        """Add the step's time to the budget, and its loss against plain sampling; outliers are capped."""
        account, plain = self._account, self.costs.call(self.rows)
        usual = self.costs.call(self.rows * sent.size) + self.costs.draft(levels, self.rows)
        took = usual if isinstance(self.costs, Nominal) else min(seconds, 1.5 * usual)
        account.spent += took
        if levels and self.costs.has(self.rows):  # else it is only supposed what plain sampling takes
            tokens = 1 + sum(step.expected for step in steps) / len(steps)
            most = -(CREDIT if self.rows == 1 else 1) * plain
            account.lost = max(account.lost + min(took, usual) - tokens * plain, most)

    def _next(self) -> Tree:
        """The shape of the next step."""
        account = self._account
        if self.rows >= self.crowd:
            return PLAIN
        if not self.costs.known:  # the first step includes prefill; the next ones measure a plain step
            return Tree.chain(FIRST) if self._hopeful and self.rows < BATCH else PLAIN
        if account.probing:
            return self._best(self._width, least=1).tree
        if account.wait:
            account.wait -= 1
            if account.wait or not self._affordable(1):
                account.wait = max(account.wait, 1)
                return PLAIN
            return self._probe(1)
        if self._hopeless:
            return self._off()
        if self._hopeful and not self.costs.has(self.rows) and self.seen[1].seen >= FIRST:
            return PLAIN  # measure plain sampling, to compare with
        if account.since >= REFRESH:
            account.since = 0
            rare = min(self.seen, key=lambda width: self.seen[width].seen)
            return PLAIN if rare == 1 or not self._affordable(rare) else self._probe(rare)
        unseen = [width for width in WIDTHS if width in self.seen and not self.seen[width].seen]
        if unseen and self._affordable(unseen[0]):
            return self._probe(unseen[0], steps=1)
        chosen = self._chosen()
        return chosen.tree if chosen.tree.size > 1 or not self._hopeful else self._best(1, least=1).tree

    @property
    def _hopeless(self) -> bool:
        """Whether drafting has lost too much time, or promises no gain.

        Alone, a trained drafter must have lost time in any case, and may lose more: acceptance varies from step to
        step. Not so that of a batch, whose texts even it out.
        """
        account, plain, pays = self._account, self.costs.call(self.rows), self._pays()
        if not self._hopeful or self.rows > 1:
            return not pays or account.lost > self._budget + plain
        return account.lost > (3 * LOSS if pays else LOSS) * plain

    def _probe(self, width: int, steps: int = PROBE) -> Tree:
        self._account.probing, self._width = steps, width
        self.seen[width].doubt()
        return self._best(width, least=1).tree

    def _off(self) -> Tree:
        """Make plain steps for a while, longer each time."""
        account = self._account
        account.wait, account.pause = account.pause, min(2 * account.pause, LONGEST_PAUSE)
        return PLAIN

    def _affordable(self, width: int) -> bool:
        """Whether a probe's likely loss is within the budget."""
        tree, gain = self._best(width, least=1)
        took = self.costs.call(self.rows * tree.size) + self.costs.draft(tree.depth[-1], self.rows)
        return self._account.lost + PROBE * took * max(1 - gain, 0.0) <= self._budget

    @property
    def _budget(self) -> float:
        """Seconds that may be lost."""
        return (BUDGET if self.rows == 1 else BATCH_BUDGET) * self._account.spent

    def _pays(self) -> bool:
        """Whether drafting gains enough; the margin is smaller for a drafter that rarely has a guess."""
        margin = BATCH_MARGIN if self._hopeful and self.rows > 1 else MARGIN
        pays = self._chosen().gain >= 1 + margin * self.seen[1].guessed
        if pays:
            self._account.pause = PAUSE
        return pays

    def _chosen(self) -> Choice:
        if self._choice is None:
            choices = [self._best(width) for width, seen in self.seen.items() if seen.seen or width == 1]
            if self.trees not in ("chain", "paths"):
                choices.append(self._best_tree())
            self._choice = max(choices, key=lambda choice: choice.gain)
        return self._choice

    def _best(self, width: int, least: int = 0) -> Choice:
        """The best length of `width` paths, at most twice the longest tried before, or one more for a trained drafter.

        A level costs only as often as it is not empty. A trained drafter gets the longest of the lengths that are about
        as good: block verification accepts more of a long block than short ones show.
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
            seconds += asked * (cost.draft(length, rows) - cost.draft(length - 1, rows))
            before, asked = call, guessed * deep[length - 1]
            choices.append(Choice(Tree.paths(width, length), tokens * plain / seconds))
        best = max(choices, key=lambda choice: choice.gain)
        if self._hopeful and best.tree.size > 1:
            best = next(choice for choice in reversed(choices) if choice.gain >= SLACK * best.gain)
        return best

    def _best_tree(self) -> Choice:
        """The best tree for the acceptance of siblings at the first level."""
        acc = plan.by_sibling({width: seen.reached[0] for width, seen in self.seen.items() if seen.seen or width == 1})
        sizes = {n: plan.Seconds(self.costs.call(self.rows * n)) for n in (1, 2, 3, 5, 9, 17, MOST)}
        planned = plan.best_tree(
            acc, plan.Costs(plan.Seconds(self.costs.draft(6, self.rows) / 6), sizes), most=MOST, depth=6
        )
        return Choice(planned.tree, planned.speedup)


class Past:
    """Estimates that are shared from one text to the next."""

    def __init__(self, hope: float) -> None:
        self.clock, self.temper = Clock(1), Temper()
        self.survival = Survival(hope, PATIENCE, FIRST // 2, fade=0.98)  # of several texts


def tuned(trees: str, drafts: Sequence[Model], tempers: bool) -> Auto:
    """A tuner that may depend on the clock; a trained head keeps its estimates for the next text."""
    expected, past, crowd = hope(drafts), None, inf
    if len(drafts) == 1 and taps(drafts[0]) and (memory := kept(drafts[0])) is not None:
        past = memory.setdefault("tuning", Past(expected))
    if facts(drafts[0]).trained and facts(drafts[0]).device == "cpu":  # another drafter costs little to try
        crowd = CROWD * torch.get_num_threads()
    return Auto(trees, tempers=tempers, hope=expected, past=past, crowd=crowd, least=least(drafts))


def hope(drafts: Sequence[object]) -> float:
    """Prior acceptance of a first draft token: a trained drafter nearly always pays."""
    return 0.65 if any(facts(draft).trained for draft in drafts) else Survival.START


def least(drafts: Sequence[object]) -> float:
    """How likely a token must be to be reached: on a GPU, where more of them are nearly free, any will do."""
    return LEAST if any(facts(draft).trained and facts(draft).device == "cpu" for draft in drafts) else 0.0


def assumed(target: Model, drafts: Sequence[Model]) -> Nominal:
    """Assumed costs from the sizes of the models, and from the device: on a GPU more tokens are nearly free."""
    target_facts = facts(target)
    drafting = (
        max([0.002, *(facts(draft).weights / target_facts.weights for draft in drafts)])
        if target_facts.weights
        else 0.1
    )
    return Nominal(target_facts.token_cost, drafting)


def _reached(step: Step) -> Sequence[float]:
    """P(accepted >= 1, 2, ...) of a step; couplings have no law to report, so the accepted number is used."""
    return step.reached or (1.0,) * step.accepted
