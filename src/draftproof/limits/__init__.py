"""Measure the acceptance of every rule on your models and prompts, beside its limit (Hu et al. 2502.18779).

The target writes a text for each prompt. At every position the drafter guesses paths, one target call scores them all,
and each rule's law gives the number of guesses it would accept. Nothing is really accepted, so all rules see the same
positions, and no rule's noise is in the numbers. Only running means are kept, so memory stays constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from draftproof.engine.arguments import Prompt, encode
from draftproof.engine.request import SampleKey
from draftproof.errors import DraftproofError
from draftproof.limits import clock
from draftproof.limits.forest import Forest, Position, RuleCase, cases, reached
from draftproof.limits.walk import Walk
from draftproof.models import check_vocabularies
from draftproof.models.base import Model
from draftproof.sampling import Sampling
from draftproof.theory.plan import Estimate, Plan, by_temperature, path_plans
from draftproof.verify import VERIFIERS, block

WIDEST = 64  # guesses for a token: planning rules take time for each
FACTORS = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5)  # on the drafter's temperature


class LimitSettings(NamedTuple):
    """What to measure: numbers of guesses, temperatures, and lengths of texts and paths."""

    siblings: tuple[int, ...] = (1, 2, 4)
    temperatures: tuple[float, ...] = (1.0,)
    tokens: int = 24  # of text for each prompt
    length: int = 4  # of the paths
    draft_top_k: int = 1000  # tokens the drafter draws from; planning rules take time for more
    seed: int = 0
    chat: bool = True

    def check(self) -> LimitSettings:
        for name in ("tokens", "length"):
            if getattr(self, name) < 1:
                raise DraftproofError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.siblings or not all(1 <= K <= WIDEST for K in self.siblings):
            values = ", ".join(map(str, self.siblings)) or "empty"
            raise DraftproofError(f"k must be from 1 to {WIDEST}, not {values}")
        for temperature in self.temperatures:
            Sampling(temperature=temperature, top_k=self.draft_top_k)
        return self


class Measured(NamedTuple):
    """What was measured for one rule at one temperature."""

    case: RuleCase
    estimate: Estimate  # of the entries that `RunningMeans.add` computes for a position
    plan: Plan  # the best length of its paths

    @property
    def acceptance(self) -> float:
        """Probability that one of K guesses for a token is accepted; never above the limit of the same draws."""
        return max(float(self._weights @ self.estimate.mean[:3]), 0.0)  # below zero by chance alone

    @property
    def acceptance_error(self) -> float:
        return self._error(self._weights)

    @property
    def limit(self) -> float:
        """The largest acceptance of any exact rule whose guesses are drawn in the same way."""
        return float(self.estimate.mean[2])

    @property
    def share(self) -> float | None:
        """Acceptance as a share of that limit, from 0 to 1; None where the limit is zero."""
        return self.acceptance / self.limit if self.limit > 0 else None

    @property
    def share_error(self) -> float | None:
        """Standard error of the share, for which both were measured at the same positions; at most what is missing."""
        if self.share is None:
            return None
        error = self._error(self._weights - np.array([0.0, 0.0, self.share])) / self.limit
        return error if math.isnan(error) else min(error, 1 - self.share)

    @property
    def tokens(self) -> float:
        """Expected tokens per target call, with paths of the full length."""
        return 1 + float(self.estimate.mean[4:].sum())

    @property
    def tokens_error(self) -> float:
        return math.sqrt(max(float(self.estimate.covariance[4:, 4:].sum()), 0.0))

    @property
    def tokens_limit(self) -> float | None:
        """The most expected tokens of any rule on one path that was drawn like this; None for several paths.

        For these no formula is known. A rule is measured on the same paths as its limit, so it never passes it.
        """
        return 1 + float(self.estimate.mean[3]) if self.case.siblings == 1 else None

    @property
    def _weights(self) -> Any:
        """Weights of acceptance, shortfall and limit in the estimate of the acceptance.

        The mean acceptance and the limit less the mean shortfall have the same expectation. The second is exact for the
        best rules and never above the limit; the first has less noise for rules that are far from it.
        """
        plain, paired = np.array([1.0, 0.0, 0.0]), np.array([0.0, -1.0, 1.0])
        possible = plain @ self.estimate.mean[:3] <= self.limit
        return plain if possible and self._error(plain) < self._error(paired) else paired

    def _error(self, weights: Any) -> float:
        """Standard error of a weighted sum of acceptance, shortfall and limit."""
        return math.sqrt(max(float(weights @ self.estimate.covariance[:3, :3] @ weights), 0.0))


class TemperatureResult(NamedTuple):
    """The results at one temperature."""

    temperature: float
    positions: int
    drafted: int  # positions at which the drafter had a guess
    rules: list[Measured]
    draft: dict[
        int, Estimate
    ]  # K -> limit of iid draws for each of FACTORS on the drafter's temperature, if it has one


class CommandNames(NamedTuple):
    """The models as the command line names them, and the other options with which it loads and asks them."""

    target: str
    draft: str
    options: tuple[str, ...] = ()


class LimitReport(NamedTuple):
    """The results of `measure`."""

    target: str
    draft: str
    draft_top_k: int  # tokens the drafter drew from; 0 if it drew from all, or has no logits to cut
    settings: LimitSettings
    times: clock.Times
    results: list[TemperatureResult]
    names: CommandNames


def measure(
    target: Model,
    draft: Model,
    prompts: Sequence[Prompt],
    settings: LimitSettings | None = None,
    progress: Callable[[], object] = lambda: None,
    names: CommandNames | None = None,
) -> LimitReport:
    """Run both models over texts that the target writes for the prompts; `progress` is called after each position.

    `names` are for the command that the report recommends; by default those of the models.
    """
    settings = (settings or LimitSettings()).check()
    check_vocabularies(target, draft)
    texts = [encode(target, prompt, settings.chat) for prompt in prompts]
    rule_cases = cases(settings.siblings)
    forest = Forest.of(rule_cases)
    times: clock.Times | None = None
    draft_top_k = 0
    results = []
    for temperature in settings.temperatures:
        means = RunningMeans(rule_cases, settings)
        sampling = Sampling(temperature=temperature, end_tokens=target.end_tokens)
        for number, ids in enumerate(texts):
            sizes = (settings.length, settings.tokens)
            walk = Walk(
                target, draft, ids, sampling, settings.draft_top_k, forest, *sizes, SampleKey(settings.seed, number)
            )
            draft_top_k = walk.draft_top_k
            while not walk.finished:
                guesses = walk.look()
                means.add(Position(forest, guesses, *walk.spare_noise()), walk.has_logits and temperature > 0)
                if times is None or (not times.guessed and guesses.tree.size > 1):  # one set of times for all texts
                    times = clock.measure(walk, rule_cases)
                walk.go_on()
                progress()
        results.append((temperature, means))
    if times is None:
        raise DraftproofError("the prompts fill the context, so there is nothing to measure: use shorter ones")
    found = [means.result(t, times) for t, means in results]
    names = names or CommandNames(target.name, draft.name)
    return LimitReport(target.name, draft.name, draft_top_k, settings, times, found, names)


class RunningMeans:
    """Running means of all rules at one temperature."""

    def __init__(self, rule_cases: Sequence[RuleCase], settings: LimitSettings) -> None:
        self.length, self.siblings = settings.length, settings.siblings
        empty = Estimate.of(np.zeros((0, settings.length + 4)))
        self.rules = dict.fromkeys(rule_cases, empty)
        self.draft: dict[int, Estimate] = {}
        self.positions = self.drafted = 0

    def add(self, position: Position, tempered: bool) -> None:
        """Add what each rule would do at a position, and for drafters with a temperature what another one would do.

        Entries: acceptance of one token, what it falls short of its limit, that limit, the limit of the accepted length
        of one path, and P(accepted >= 1, 2, ... length).
        """
        p, q = position.rows
        self.positions += 1
        self.drafted += bool(q.any())
        for case, estimate in self.rules.items():
            whole = position.whole(case)
            length = float(block.weights(whole)[0, 1:].sum()) if case.siblings == 1 else 0.0
            paced = reached(VERIFIERS[case.rule], whole, position.select, self.length)
            self.rules[case] = estimate.add(np.array([*position.judged(case), position.limit(case), length, *paced]))
        for K in self.siblings if tempered else ():
            estimate = self.draft.get(K, Estimate.of(np.zeros((0, len(FACTORS)))))
            self.draft[K] = estimate.add(by_temperature(p, q, K, FACTORS) if q.any() else np.zeros(len(FACTORS)))

    def result(self, temperature: float, times: clock.Times) -> TemperatureResult:
        rules = []
        for case, estimate in self.rules.items():
            inner = slice(4, 4 + self.length)
            paced = Estimate(estimate.seen, estimate.mean[inner], estimate.scatter[inner, inner])
            plans = path_plans(paced, times.steps[case], case.siblings)[1:]
            rules.append(Measured(case, estimate, max(plans, key=lambda plan: plan.rate)))
        return TemperatureResult(temperature, self.positions, self.drafted, rules, self.draft)
