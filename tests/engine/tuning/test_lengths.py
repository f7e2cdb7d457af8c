"""The fused engine's choice of lengths: what it does on workloads whose best length is known."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

import draftproof as dp
from draftproof.engine.trace import Step
from draftproof.engine.tuning.lengths import LENGTHS, PAUSE, Pace
from draftproof.engine.tuning.tuner import StepReport


def paced():
    return Pace(dp.Tree.chain(5), hope=0.6)


def run(pace, steps, chance, level, seed=0):
    """Lengths of so many steps whose guesses are each accepted with that chance; a plain step takes 1."""
    chosen, draws = [], random.Random(seed)
    for _ in range(steps):
        tree = pace.tree
        length = tree.depth[-1]
        accepted = 0
        while accepted < length and draws.random() < chance:
            accepted += 1
        chosen.append(length)
        seconds = {"draft": level * length, "target": 1 + 0.01 * length, "verify": 0.0}
        step = Step((0,) * (accepted + 1), length, length, accepted, reached=(), cost=(), seconds=seconds)
        pace.learn(StepReport(tree, tree, [step], seconds))
    return chosen


def test_what_clearly_pays_is_not_touched():
    assert set(run(paced(), 300, 0.8, 0.1)) == {5}


@pytest.mark.parametrize(("chance", "level", "best"), [(0.55, 0.25, 2), (0.9, 0.1, 5), (0.2, 0.5, 0)])
def test_the_best_length_is_found(chance, level, best):
    chosen = run(paced(), 400, chance, level)
    assert chosen[0] == LENGTHS[-1]
    assert chosen[200:].count(best) > 150


def test_what_never_pays_is_tried_again_less_and_less_often():
    chosen = run(paced(), 4000, 0.02, 0.3)
    probes = [i for i in range(1, 4000) if chosen[i] and not chosen[i - 1]]
    gaps = [b - a for a, b in pairwise(probes)]
    assert gaps[0] >= PAUSE
    assert gaps == sorted(gaps)
    assert sum(map(bool, chosen[1000:])) < 0.02 * 3000


def test_guessing_that_pays_again_is_noticed():
    pace = paced()
    assert not any(run(pace, 200, 0.02, 0.3)[-20:])
    assert run(pace, 400, 0.95, 0.05)[-1] == 5
