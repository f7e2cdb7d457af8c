"""tree="auto": the first steps try several shapes of draft, the others use the one that pays most (plan.py).

The trial steps are ordinary steps whose tokens are kept; each shows what a call with that many tokens takes here and
how many of that many guesses are accepted with this text, drafter and rule. Exact: a step's shape depends on steps
before it only. As it depends on the clock too, a seed gives the same text again only with rules that share their noise
("gumbel"); the trace names the tree that was chosen, to ask for it by name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from draftproof.couple import Coupling
from draftproof.draft import Tree
from draftproof.engine.trace import Step
from draftproof.lossy import Lossy
from draftproof.theory.plan import Costs, Estimate, Plan, Seconds, best_paths, best_tree, by_sibling

WIDTHS = (1, 2, 4, 8)
LENGTH = 4  # of the paths that are tried; longer ones are judged by how the last position went
LONGEST = 16
MOST = 33  # nodes of a tree
ROUNDS = 4  # trials of each shape


class Auto:
    """Stands where a Tree stands in a batch: `cut` gives the tree of the next step, `learn` hears how it went."""

    size = MOST  # what a session must have room for

    def __init__(self, trees: str) -> None:
        """`trees`: what the rule accepts, as a Verifier says it."""
        self.trees = trees
        lengths = (0, LENGTH, 2 * LENGTH) if trees == "chain" else (0,)
        shapes = [Tree.chain(length) for length in lengths]
        shapes += [] if trees == "chain" else [Tree.paths(width, LENGTH) for width in WIDTHS]
        self.trials = shapes * ROUNDS
        self.plan: Plan | None = None
        self._reached: dict[int, list[list[float]]] = defaultdict(list)  # paths -> P(accepted >= 1, 2, ...) of steps
        self._target: dict[int, list[float]] = defaultdict(list)  # nodes of a call -> seconds
        self._sizes: dict[int, list[int]] = defaultdict(list)  # nodes of a shape -> nodes of its calls
        self._draft: list[float] = []  # seconds a level
        self._warm = False

    @property
    def tree(self) -> Tree:
        """The shape of the next step."""
        if self.plan is None and not self.trials:
            self.plan = self._choose()
        return self.trials[0] if self.plan is None else self.plan.tree

    def cut(self, depth: int) -> Tree:
        return self.tree.cut(depth)

    def learn(self, tree: Tree, steps: Sequence[Step]) -> None:
        """What became of the rows of one call; calls shortened by the end of the text teach nothing."""
        if not self.trials or tree != self.trials[0]:
            return
        if not self._warm:  # the first call reads the prompt, so it is tried again
            self._warm = True
            return
        self.trials.pop(0)
        depth, seconds = tree.depth[-1], steps[0].seconds
        size = tree.cut(max(step.depth for step in steps)).size  # the target reads as far as something was guessed
        self._target[size].append(seconds["target"] + seconds["verify"])
        self._sizes[tree.size].append(size)
        if depth:
            self._draft.append(seconds["draft"] / depth)
            self._reached[len(tree.children(0))] += [_reached(step, depth) for step in steps]

    @property
    def name(self) -> str:
        """The chosen shape as `Tree.parse` or Python reads it; empty before there is one."""
        if self.plan is None:
            return ""
        tree = self.plan.tree
        paths = Tree.paths(len(tree.children(0)), tree.depth[-1])
        if tree.is_chain:
            return f"chain:{tree.size - 1}"
        return f"paths:{len(tree.children(0))}x{tree.depth[-1]}" if tree == paths else repr(tree)

    def _choose(self) -> Plan:
        call = Costs(Seconds(0.0), _rising({n: Seconds.of(times).mean for n, times in self._target.items()})).call
        # A drafter that often has no guess makes short calls of a large shape: the mean is what the shape costs.
        mean = {size: float(np.mean([call(n).mean for n in calls])) for size, calls in self._sizes.items()}
        costs = Costs(Seconds.of(self._draft), _rising(mean))
        reached = {width: continued(rows) for width, rows in self._reached.items()}
        if self.trees not in ("chain", "paths"):
            acc = by_sibling({width: float(estimate.mean[0]) for width, estimate in reached.items()})
            return best_tree(acc, costs, most=MOST, depth=LONGEST)
        plans = [best_paths(_fitting(estimate, width), costs, width) for width, estimate in reached.items()]
        return max(plans, key=lambda plan: plan.rate)


def trees_of(rule: object) -> str:
    """The shapes a rule of any kind accepts."""
    if isinstance(rule, Coupling):
        return "any"
    return "chain" if isinstance(rule, Lossy) else str(getattr(rule, "trees", "any"))


def continued(rows: Sequence[Sequence[float]], length: int = LONGEST) -> Estimate:
    """Mean of P(accepted >= i) over steps of different depth; beyond the deepest, as the last position went.

    A shorter row says nothing about positions after its end; there it is given the mean of those that do.
    """
    deepest = max(map(len, rows))
    table = np.array([[*row, *[np.nan] * (deepest - len(row))] for row in rows])
    means = np.nanmean(table, axis=0)
    table = np.where(np.isnan(table), means, table)
    before = means[-2] if deepest > 1 else 1.0
    keep = min(means[-1] / before, 1.0) if before > 0 else 0.0
    tail = table[:, -1:] * keep ** np.arange(1, length - deepest + 1)
    return Estimate.of(np.concatenate([table, tail], axis=1)[:, :length])


def _rising(times: dict[int, float]) -> dict[int, Seconds]:
    """Times by size; more never takes less, and where it seems to, that is noise."""
    sizes = sorted(times)
    return dict(zip(sizes, map(Seconds, np.maximum.accumulate([times[n] for n in sizes]).tolist()), strict=True))


def _fitting(estimate: Estimate, width: int) -> Estimate:
    """Cut to paths of which `width` fit into the largest tree."""
    length = min(len(estimate.mean), (MOST - 1) // width)
    return Estimate(estimate.seen, estimate.mean[:length], estimate.scatter[:length, :length])


def _reached(step: Step, depth: int) -> list[float]:
    """P(accepted >= 1, 2, ... depth) of a step; what was not guessed is not accepted."""
    said = step.reached or (1.0,) * step.accepted  # rules that share their noise have no law to report
    return [*said, *[0.0] * depth][:depth]
