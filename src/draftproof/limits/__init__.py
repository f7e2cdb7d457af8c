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
        """Probability that one of K guesses for a token is accepted."""
        return float(self._weights @ self.estimate.mean[:3])

    @property
    def acceptance_error(self) -> float:
        return math.sqrt(max(float(self._weights @ self.estimate.covariance[:3, :3] @ self._weights), 0.0))

    @property
    def limit(self) -> float:
        """The largest acceptance of any rule with the same draw."""
        return float(self.estimate.mean[1])

    @property
    def tokens(self) -> float:
        """Expected tokens per target call, with paths of the full length."""
        return 1 + float(self.estimate.mean[4:].sum())

    @property
    def tokens_error(self) -> float:
        return math.sqrt(max(float(self.estimate.covariance[4:, 4:].sum()), 0.0))

    @property
    def tokens_limit(self) -> float | None:
        """The most expected tokens of any rule on one path; None for several paths, where no formula is known."""
        return 1 + float(self.estimate.mean[3]) if self.case.siblings == 1 else None

    @property
    def _weights(self) -> Any:
        """Weights of acceptance, limit and luck that remove the luck of the draw from the acceptance, by regression.

        Luck is zero on average, so what the acceptance shares with it is noise.
        """
        scatter = self.estimate.scatter
        share = (scatter[0, 2] - scatter[1, 2]) / scatter[2, 2] if scatter[2, 2] > 0 else 0.0
        return np.array([1.0, 0.0, -share])


class TemperatureResult(NamedTuple):
    """The results at one temperature."""

    temperature: float
    positions: int
    rules: list[Measured]
    draft: dict[int, Estimate]  # K -> limit of the acceptance for each of FACTORS on the drafter's temperature


class LimitReport(NamedTuple):
    """The results of `measure`."""

    target: str
    draft: str
    settings: LimitSettings
    times: clock.Times
    results: list[TemperatureResult]


def measure(
    target: Model,
    draft: Model,
    prompts: Sequence[Prompt],
    settings: LimitSettings | None = None,
    progress: Callable[[], object] = lambda: None,
) -> LimitReport:
    """Run both models over texts that the target writes for the prompts; `progress` is called after each position."""
    settings = (settings or LimitSettings()).check()
    check_vocabularies(target, draft)
    texts = [encode(target, prompt, settings.chat) for prompt in prompts]
    rule_cases = cases(settings.siblings)
    forest = Forest.of(rule_cases)
    times: clock.Times | None = None
    results = []
    for temperature in settings.temperatures:
        means = RunningMeans(rule_cases, forest, settings)
        sampling = Sampling(temperature=temperature, end_tokens=target.end_tokens)
        for number, ids in enumerate(texts):
            sizes = (settings.length, settings.tokens)
            walk = Walk(
                target, draft, ids, sampling, settings.draft_top_k, forest, *sizes, SampleKey(settings.seed, number)
            )
            while not walk.finished:
                guesses = walk.look()
                means.add(Position(forest, guesses, *walk.spare_noise()))
                if times is None or (not times.guessed and guesses.tree.size > 1):  # one set of times for all texts
                    times = clock.measure(walk, rule_cases)
                walk.go_on()
                progress()
        results.append((temperature, means))
    if times is None:
        raise DraftproofError("the prompts fill the context, so there is nothing to measure: use shorter ones")
    return LimitReport(target.name, draft.name, settings, times, [means.result(t, times) for t, means in results])


class RunningMeans:
    """Running means of all rules at one temperature."""

    def __init__(self, rule_cases: Sequence[RuleCase], forest: Forest, settings: LimitSettings) -> None:
        self.forest, self.length = forest, settings.length
        empty = Estimate.of(np.zeros((0, settings.length + 4)))
        self.rules = dict.fromkeys(rule_cases, empty)
        self.draft = {K: Estimate.of(np.zeros((0, len(FACTORS)))) for K in settings.siblings}
        self.positions = 0

    def add(self, position: Position) -> None:
        """Add what each rule would do at a position.

        Entries: acceptance of a first guess, its limit, luck of the draw, the limit of the accepted length of one path,
        and P(accepted >= 1, 2, ... length).
        """
        self.positions += 1
        for case, estimate in self.rules.items():
            limit, whole = position.limit(case), position.whole(case)
            length = float(block.weights(whole)[0, 1:].sum()) if case.siblings == 1 else 0.0
            paced = reached(VERIFIERS[case.rule], whole, position.select, self.length)
            self.rules[case] = estimate.add(
                np.array([position.acceptance(case.rule, case), limit, position.luck(case), length, *paced])
            )
        for K, estimate in self.draft.items():
            p, q = position.rows
            self.draft[K] = estimate.add(by_temperature(p, q, K, FACTORS) if q.any() else np.zeros(len(FACTORS)))

    def result(self, temperature: float, times: clock.Times) -> TemperatureResult:
        rules = []
        for case, estimate in self.rules.items():
            inner = slice(4, 4 + self.length)
            paced = Estimate(estimate.seen, estimate.mean[inner], estimate.scatter[inner, inner])
            plans = path_plans(paced, times.steps[case], case.siblings)[1:]
            rules.append(Measured(case, estimate, max(plans, key=lambda plan: plan.rate)))
        return TemperatureResult(temperature, self.positions, rules, self.draft)
