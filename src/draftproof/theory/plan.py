"""Choose chain lengths and trees, and predict the speed-up (Leviathan et al. 2211.17192; Sequoia, 2402.12374).

Expected tokens and the seconds they take are enough to choose by. Both are estimates, so a plan carries the standard
error of its speed-up. Nothing here can make a text inexact: a plan decides what is guessed, not what is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from draftproof.draft import Node, Tree, as_tree, grow
from draftproof.law import normalise
from draftproof.theory import bounds

# Every guess accepted with the same probability alpha, whatever happened before; cost = draft step / target step


def tokens_per_call(alpha: float, length: int) -> float:
    """Expected tokens of a chain of `length` guesses and the token after it: 1 + alpha + ... + alpha^length."""
    return length + 1.0 if alpha == 1 else (1 - alpha ** (length + 1)) / (1 - alpha)


def speedup(alpha: float, length: int, cost: float) -> float:
    """Against plain sampling, if a target call takes the same time for one token and for a chain of them."""
    return tokens_per_call(alpha, length) / (length * cost + 1)


def best_length(alpha: float, cost: float, most: int = 1000) -> int:
    """The chain with the largest speed-up, by trying lengths up to the first decrease: there is only one peak.

    Where every further guess pays (a free drafter, or one that is never refused) that is `most`.

    >>> best_length(0.8, 0.1)
    6
    """
    length = 0
    while length < most and speedup(alpha, length + 1, cost) > speedup(alpha, length, cost):
        length += 1
    return length


def best_length_closed(alpha: float, cost: float) -> int:
    """The same in closed form, for 0 < alpha < 1 and cost > 0.

    With l = -ln alpha the derivative vanishes where t = 1 + l (length + 1 / cost) solves t - ln t = s, which is
    t = -W(-exp(-s)) on the lower branch of Lambert's function. Newton's method solves it where exp(-s) would underflow.
    """
    if alpha <= cost:
        return 0
    rate = -math.log(alpha)
    s = 1 + rate * (1 / cost - 1)
    t = s + math.log(s) + 1
    for _ in range(60):
        t -= (t - math.log(t) - s) / (1 - 1 / t)
    low = max(0, math.floor((t - 1) / rate - 1 / cost))
    return max(low, low + 1, key=lambda length: speedup(alpha, length, cost))


# Measured acceptance and measured time


class Estimate(NamedTuple):
    """The running mean of vectors (Welford 1962) and its standard error; the vectors are not stored."""

    seen: int
    mean: Any  # [D]
    scatter: Any  # [D, D] sum of products of deviations from the mean

    @staticmethod
    def of(values: Any) -> Estimate:
        """All vectors [S, D] at once."""
        start = Estimate(0, np.zeros(np.shape(values)[1]), np.zeros((np.shape(values)[1],) * 2))
        for value in values:
            start = start.add(value)
        return start

    def add(self, value: Any) -> Estimate:
        """With one more vector [D]."""
        seen = self.seen + 1
        before = np.asarray(value, dtype=np.float64) - self.mean
        mean = self.mean + before / seen
        return Estimate(seen, mean, self.scatter + np.outer(before, value - mean))

    @property
    def covariance(self) -> Any:
        """[D, D] of the mean; not a number before the second vector."""
        return self.scatter / (self.seen * (self.seen - 1)) if self.seen > 1 else self.scatter * math.nan

    @property
    def error(self) -> Any:
        """[D] standard error of the mean."""
        return np.sqrt(np.diagonal(self.covariance))


class Seconds(NamedTuple):
    """A measured time and its standard error."""

    mean: float
    error: float = 0.0

    @staticmethod
    def of(times: Sequence[float]) -> Seconds:
        """The median, which a single slow call does not move; its error from the middle half of the times."""
        low, middle, high = np.quantile(times, (0.25, 0.5, 0.75))
        return Seconds(float(middle), float((high - low) / 1.35 * math.sqrt(math.pi / 2 / len(times))))

    def plus(self, other: Seconds) -> Seconds:
        return Seconds(self.mean + other.mean, math.hypot(self.error, other.error))

    def times(self, factor: float) -> Seconds:
        return Seconds(self.mean * factor, self.error * factor)


class Costs(NamedTuple):
    """What a step takes on some machine: a draft call for each level, a target call by its number of tokens."""

    draft: Seconds
    target: dict[int, Seconds]  # tokens in the call, the last committed one included -> time

    def call(self, size: int) -> Seconds:
        """The target's call with `size` tokens: between two measured sizes, or beyond them, on the straight line."""
        if size in self.target or len(self.target) == 1:
            return self.target.get(size, next(iter(self.target.values())))
        sizes = sorted(self.target)
        place = min(max(int(np.searchsorted(sizes, size)), 1), len(sizes) - 1)
        low, high = sizes[place - 1], sizes[place]
        share = (size - low) / (high - low)
        mean = self.target[low].mean * (1 - share) + self.target[high].mean * share
        if size > high:
            mean = max(mean, self.target[high].mean)  # noise aside, more tokens never take less time
        return Seconds(mean, max(self.target[low].error, self.target[high].error))

    def step(self, tree: Tree) -> Seconds:
        """Draft, one level after another, and target."""
        return self.draft.times(tree.depth[-1]).plus(self.call(tree.size))


class Plan(NamedTuple):
    """A tree and the speed it promises."""

    tree: Tree
    tokens: float  # expected per target call
    seconds: float  # per target call, draft included
    speedup: float  # tokens per second against plain sampling
    error: float  # standard error of the speed-up

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    @property
    def interval(self) -> tuple[float, float]:
        """The speed-up a standard error below and above, of its logarithm: a ratio is never negative.

        From 0 to infinity where the error is as large as the speed-up itself: it could be anything.
        """
        relative = self.error / self.speedup
        if relative >= 1:
            return 0.0, math.inf
        return self.speedup * math.exp(-relative), self.speedup * math.exp(relative)


def promise(tree: Tree, tokens: float, variance: float, costs: Costs) -> Plan:
    """The plan for a tree with so many expected tokens; relative errors of tokens and times add as squares."""
    plain, step = costs.call(1), costs.step(tree)
    gain = tokens * plain.mean / step.mean
    if tree.size == 1:
        return Plan(tree, tokens, step.mean, 1.0, 0.0)
    relative = math.hypot(math.sqrt(variance) / tokens, plain.error / plain.mean, step.error / step.mean)
    return Plan(tree, tokens, step.mean, gain, gain * relative)


def path_plans(reached: Estimate, costs: Costs, width: int = 1) -> list[Plan]:
    """What `width` paths side by side promise for every length from 0, given estimates of P(accepted >= 1, 2, ...)."""
    plans = [promise(Tree.chain(0), 1.0, 0.0, costs)]
    for length in range(1, len(reached.mean) + 1):
        variance = float(reached.covariance[:length, :length].sum())
        tokens = 1 + float(reached.mean[:length].sum())
        plans.append(promise(Tree.paths(width, length), tokens, variance, costs))
    return plans


def best_paths(reached: Estimate, costs: Costs, width: int = 1) -> Plan:
    """The best length for `width` paths, up to the one that was measured; no guess at all is among the choices."""
    return max(path_plans(reached, costs, width), key=lambda plan: plan.rate)


# Trees: guess k of a node is the accepted one with probability acc[k]


def best_tree(acc: Sequence[float], costs: Costs, *, covariance: Any = None, most: int = 64, depth: int = 16) -> Plan:
    """The tree of at most `most` nodes with the most tokens per second, size and depth chosen together.

    covariance [K, K] is that of `acc`, if it was estimated.
    """
    best, chosen = promise(Tree.chain(0), 1.0, 0.0, costs), [Node((), 1.0)]
    for cap in range(1, depth + 1):
        nodes = grow(acc, most, cap)
        tokens = np.cumsum([node.value for node in nodes])
        levels = np.maximum.accumulate([len(node.place) for node in nodes])
        seconds = [costs.draft.mean * d + costs.call(n).mean for n, d in enumerate(levels, start=1)]
        size = int(np.argmax(tokens / seconds)) + 1
        if tokens[size - 1] / seconds[size - 1] > best.rate:
            chosen = nodes[:size]
            best = promise(as_tree(chosen), float(tokens[size - 1]), 0.0, costs)
    if covariance is None:
        return best
    slope = _slope(chosen, acc)
    return promise(best.tree, best.tokens, float(slope @ covariance @ slope), costs)


def _slope(nodes: Sequence[Node], acc: Sequence[float]) -> Any:
    """[K] derivative of the expected tokens by each entry of acc."""
    slope = np.zeros(len(acc))
    for node in nodes:
        for level, rank in enumerate(node.place):
            others = node.place[:level] + node.place[level + 1 :]
            slope[rank] += math.prod(acc[r] for r in others)
    return slope


def by_sibling(accepted: dict[int, float]) -> list[float]:
    """`acc` from the probability that one of K siblings is accepted, known for some K: each more adds its share.

    >>> by_sibling({1: 0.5, 3: 0.7})
    [0.5, 0.1, 0.1]
    """
    acc: list[float] = []
    total = 0.0
    for width in sorted(accepted):
        share = max(accepted[width] - total, 0.0) / (width - len(acc))
        share = min(round(share, 12), *acc[-1:], 1.0)  # noise may make a later sibling look better than an earlier one
        acc += [share] * (width - len(acc))
        total = sum(acc)
    return acc


# The drafter's temperature


def tempered(q: Any, factor: float) -> Any:
    """The law [..., V] that q becomes when the temperature it was drawn at is multiplied by `factor`."""
    (law,) = each_tempered(q, [factor])
    return law


def each_tempered(q: Any, factors: Sequence[float]) -> list[Any]:
    """The same for several factors."""
    with np.errstate(divide="ignore"):
        scores = np.log(q)
    largest = np.max(scores, axis=-1, keepdims=True)
    return [normalise(np.where(q > 0, np.exp(scores / factor - largest / factor), 0.0)) for factor in factors]


def by_temperature(
    p: Any, q: Any, siblings: int, factors: Sequence[float], limit: Callable[[Any, Any, int], Any] = bounds.iid
) -> Any:
    """[len(factors)] mean acceptance over rows [B, V] for drafts drawn hotter or colder; one guess or the best rule."""
    return np.array([np.mean(limit(p, tempered(q, factor), siblings)) for factor in factors])


def best_draft_temperature(p: Any, q: Any, siblings: int = 1, low: float = 0.25, high: float = 4.0) -> float:
    """The factor on the drafter's temperature that lets most guesses of rows [B, V] be accepted.

    A grid finds the neighbourhood of the peak, finer grids the peak itself.
    """
    grid = np.geomspace(low, high, 17)
    for _ in range(4):
        place = int(np.argmax(by_temperature(p, q, siblings, grid.tolist())))
        grid = np.geomspace(grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)], 9)
    place = int(np.argmax(by_temperature(p, q, siblings, grid.tolist())))
    return float(grid[place])
