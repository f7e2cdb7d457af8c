"""Time a step on this machine: the drafter's call, the target's call by number of tokens, each rule's decision."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from draftproof.draft import Tree
from draftproof.draws import DRAWS
from draftproof.engine.eager import by_draw, decide, propose
from draftproof.limits.forest import RuleCase
from draftproof.limits.walk import LARGEST, Walk
from draftproof.theory.plan import Costs, Seconds
from draftproof.verify import VERIFIERS

SIZES = (1, 2, 3, 5, 9, 17, LARGEST)  # tokens of a call
REPEATS = 5


class Times(NamedTuple):
    """Times that were measured at one position."""

    models: Costs
    steps: dict[RuleCase, Costs]  # the same with each rule's decision
    guessed: bool  # whether the drafter had a guess there; without one, rules have nothing to decide


def measure(walk: Walk, rule_cases: Sequence[RuleCase]) -> Times:
    """Measure times at the walk's position. No call is committed, so the position stays the same."""
    chain = Tree.chain(walk.length)
    guess = by_draw([walk.row], chain, DRAWS["iid"])
    calls = [partial(_call, walk, size) for size in SIZES]
    drafted, *called = _times(partial(propose, [walk.row], walk.drafters, chain, guess, walk.vocabulary), *calls)
    draft, target = drafted.times(1 / walk.length), dict(zip(SIZES, called, strict=True))
    target[1] = min(called, key=lambda call: call.mean)  # one token takes no longer than several: noise
    decisions = {case: _decision(walk, case) for case in rule_cases}
    sampled = _decision(walk, RuleCase("match", "iid", 1), length=0)  # no guesses: it draws from p
    plain = target[1].plus(min(sampled, *decisions.values(), key=lambda decision: decision.mean))
    steps = {}
    for case, decision in decisions.items():
        steps[case] = Costs(draft, {**{size: call.plus(decision) for size, call in target.items()}, 1: plain})
    assert walk.draft is not None
    return Times(Costs(draft, target), steps, walk.draft.tree.size > 1)


def _call(walk: Walk, size: int) -> float:
    tokens = np.full((1, size), walk.row.last, dtype=np.int64)
    return float(walk.target_laws(Tree.chain(size - 1), tokens)[0, 0, 0])  # reading a number waits for the device


def _decision(walk: Walk, case: RuleCase, length: int | None = None) -> Seconds:
    """A rule's time on the guesses at the walk's position, on the whole vocabulary."""
    assert walk.draft is not None
    part = walk.forest.part(walk.draft, walk.forest.paths(case), length)
    return _times(lambda: decide([walk.row], part, [0], VERIFIERS[case.rule]), repeats=2)[0]


def _times(*works: Callable[[], object], repeats: int = REPEATS) -> list[Seconds]:
    """The time of each piece of work, taken in turns, so that a busy moment of the machine does not meet only one."""
    times: list[list[float]] = [[] for _ in works]
    for turn in range(repeats + 1):
        for work, seconds in zip(works, times, strict=True):
            start = time.perf_counter()
            work()
            if turn:  # the first is a warm-up: caches fill and memory is allocated
                seconds.append(time.perf_counter() - start)
    return [Seconds.of(seconds) for seconds in times]
