"""How much is left on the table: every rule on your models and prompts, beside its limit (Hu et al. 2502.18779).

The target writes a text for each prompt. At every position the drafter guesses paths as it would there, one target
call reads them all, and each rule's law says how many it would accept: nothing is accepted in fact, so all rules see
the same positions, and no rule's noise is in the numbers. Means are updated and rows forgotten, so memory stays flat.
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
from draftproof.limits.forest import Case, Forest, Look, cases, reached
from draftproof.limits.walk import Walk
from draftproof.models import check_vocabularies
from draftproof.models.base import Model
from draftproof.sampling import Sampling
from draftproof.theory.plan import Estimate, Plan, by_temperature, path_plans
from draftproof.verify import VERIFIERS, block

WIDEST = 64  # guesses for a token: rules that plan take time for each
FACTORS = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5)  # on the drafter's temperature


class Settings(NamedTuple):
    """What is measured."""

    siblings: tuple[int, ...] = (1, 2, 4)
    temperatures: tuple[float, ...] = (1.0,)
    tokens: int = 24  # of text for each prompt
    length: int = 4  # of the paths
    draft_top_k: int = 1000  # tokens the drafter draws from; rules that plan over all of them take time for more
    seed: int = 0
    chat: bool = True

    def check(self) -> Settings:
        for name in ("tokens", "length"):
            if getattr(self, name) < 1:
                raise DraftproofError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.siblings or not all(1 <= K <= WIDEST for K in self.siblings):
            given = ", ".join(map(str, self.siblings)) or "empty"
            raise DraftproofError(f"k must be from 1 to {WIDEST}, not {given}")
        for temperature in self.temperatures:
            Sampling(temperature=temperature, top_k=self.draft_top_k)
        return self


class Measured(NamedTuple):
    """One rule at one temperature."""

    case: Case
    estimate: Estimate  # of the entries that `Notes.add` makes for a position
    plan: Plan  # the best length of its paths

    @property
    def acceptance(self) -> float:
        """That one of K guesses for a token is accepted."""
        return float(self._weights @ self.estimate.mean[:3])

    @property
    def acceptance_error(self) -> float:
        return math.sqrt(max(float(self._weights @ self.estimate.covariance[:3, :3] @ self._weights), 0.0))

    @property
    def limit(self) -> float:
        """Of the acceptance, for any rule that draws in the same way."""
        return float(self.estimate.mean[1])

    @property
    def tokens(self) -> float:
        """Expected per target call, with paths of the full length."""
        return 1 + float(self.estimate.mean[4:].sum())

    @property
    def tokens_error(self) -> float:
        return math.sqrt(max(float(self.estimate.covariance[4:, 4:].sum()), 0.0))

    @property
    def tokens_limit(self) -> float | None:
        """Of the tokens of one path for any rule. For several paths no formula is known."""
        return 1 + float(self.estimate.mean[3]) if self.case.siblings == 1 else None

    @property
    def _weights(self) -> Any:
        """Of acceptance, limit and luck: what the rule shares of the luck of the draw is taken out, by regression.

        Luck is known to be zero on average, so that share is noise.
        """
        scatter = self.estimate.scatter
        share = (scatter[0, 2] - scatter[1, 2]) / scatter[2, 2] if scatter[2, 2] > 0 else 0.0
        return np.array([1.0, 0.0, -share])


class Temperature(NamedTuple):
    """Everything at one temperature."""

    temperature: float
    positions: int
    rules: list[Measured]
    draft: dict[int, Estimate]  # K -> limit of the acceptance for each of FACTORS on the drafter's temperature


class Report(NamedTuple):
    """Everything."""

    target: str
    draft: str
    settings: Settings
    times: clock.Times
    results: list[Temperature]


def measure(
    target: Model,
    draft: Model,
    prompts: Sequence[Prompt],
    settings: Settings | None = None,
    progress: Callable[[], object] = lambda: None,
) -> Report:
    """Run both models over texts that the target writes for the prompts; `progress` is called after each position."""
    settings = (settings or Settings()).check()
    check_vocabularies(target, draft)
    texts = [encode(target, prompt, settings.chat) for prompt in prompts]
    found = cases(settings.siblings)
    forest = Forest.of(found)
    times: clock.Times | None = None
    results = []
    for temperature in settings.temperatures:
        notes = Notes(found, forest, settings)
        sampling = Sampling(temperature=temperature, end_tokens=target.end_tokens)
        for number, ids in enumerate(texts):
            sizes = (settings.length, settings.tokens)
            walk = Walk(
                target, draft, ids, sampling, settings.draft_top_k, forest, *sizes, SampleKey(settings.seed, number)
            )
            while not walk.finished:
                seen = walk.look()
                notes.add(Look(forest, seen, *walk.spare_noise()))
                if times is None or (not times.guessed and seen.tree.size > 1):  # alike for all temperatures and texts
                    times = clock.measure(walk, found)
                walk.go_on()
                progress()
        results.append((temperature, notes))
    if times is None:
        raise DraftproofError("the prompts fill the context: nothing is left to measure, use shorter ones")
    return Report(target.name, draft.name, settings, times, [notes.result(t, times) for t, notes in results])


class Notes:
    """Running means at one temperature."""

    def __init__(self, found: Sequence[Case], forest: Forest, settings: Settings) -> None:
        self.forest, self.length = forest, settings.length
        empty = Estimate.of(np.zeros((0, settings.length + 4)))
        self.rules = dict.fromkeys(found, empty)
        self.draft = {K: Estimate.of(np.zeros((0, len(FACTORS)))) for K in settings.siblings}
        self.positions = 0

    def add(self, look: Look) -> None:
        """What each rule would do at a position.

        Entries: acceptance of a first guess, its limit, luck of the draw, the limit of the accepted length of one path,
        and P(accepted >= 1, 2, ... length).
        """
        self.positions += 1
        for case, estimate in self.rules.items():
            limit, whole = look.limit(case), look.whole(case)
            length = float(block.weights(whole)[0, 1:].sum()) if case.siblings == 1 else 0.0
            paced = reached(VERIFIERS[case.rule], whole, look.select, self.length)
            self.rules[case] = estimate.add(
                np.array([look.acceptance(case.rule, case), limit, look.luck(case), length, *paced])
            )
        for K, estimate in self.draft.items():
            p, q = look.rows
            self.draft[K] = estimate.add(by_temperature(p, q, K, FACTORS) if q.any() else np.zeros(len(FACTORS)))

    def result(self, temperature: float, times: clock.Times) -> Temperature:
        rules = []
        for case, estimate in self.rules.items():
            inner = slice(4, 4 + self.length)
            paced = Estimate(estimate.seen, estimate.mean[inner], estimate.scatter[inner, inner])
            plans = path_plans(paced, times.steps[case], case.siblings)[1:]
            rules.append(Measured(case, estimate, max(plans, key=lambda plan: plan.rate)))
        return Temperature(temperature, self.positions, rules, self.draft)
