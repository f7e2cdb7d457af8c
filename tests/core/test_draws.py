"""Ways of drawing siblings: what `sample` does has the probability that `probability` says."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch

from draftproof.draws import DRAWS, Draw, tops
from draftproof.noise import Lane, uniforms
from tests.support import gof
from tests.support.tables import table

ALL = [pytest.param(draw, id=name) for name, draw in DRAWS.items()]


@pytest.mark.parametrize("draw", ALL)
def test_probabilities_sum_to_one(draw: Draw) -> None:
    """Over every outcome, -1 included: for whole rows, rows with fewer tokens than siblings, and the zero row."""
    for seed in range(6):
        q = table(seed, 3, abstain=0.3)(())
        guesses = np.array(list(itertools.product(range(-1, 3), repeat=2)))
        assert draw.probability(np.stack([q] * len(guesses)), guesses).sum() == 1


def test_iid_sample_has_its_probability_on_a_grid() -> None:
    """A grid of uniforms as fine as the law draws each outcome exactly as often as it is probable."""
    draw, parts = DRAWS["iid"], 7
    for seed in range(6):
        q = table(seed, 3, parts=parts)(())
        grid = [Fraction(k, parts) for k in range(parts)]
        u = np.array(list(itertools.product(grid, grid)))
        counts = Counter(map(tuple, draw.sample(np.stack([q] * len(u)), u).tolist()))
        for guess, count in counts.items():
            assert draw.probability(q[None], np.array([guess]))[0] == Fraction(count, len(u))


@pytest.mark.parametrize("name", ["iid", "distinct"])
def test_sample_has_its_probability(name: str) -> None:
    draw, samples = DRAWS[name], 20_000
    q = np.array([0.1, 0.0, 0.3, 0.6])
    u = uniforms(np.full(samples, 3), np.full(samples, 0), np.arange(samples), Lane.DRAFT, 2)
    counts = Counter(map(tuple, draw.sample(np.stack([q] * samples), u).tolist()))
    pairs = list(itertools.product(range(4), repeat=2))
    law = {pair: draw.probability(q[None], np.array([pair]))[0] for pair in pairs}
    gof.check(counts, law)


def test_distinct_never_repeats_and_runs_out() -> None:
    q = np.array([[0.5, 0.5, 0.0]])
    tokens = DRAWS["distinct"].sample(q, np.array([[0.99, 0.99, 0.99]]))
    assert tokens.tolist() == [[1, 0, -1]]
    assert DRAWS["distinct"].probability(q, tokens).tolist() == [0.5]


def test_fixed_takes_the_likeliest_in_order() -> None:
    q = np.array([[0.2, 0.4, 0.0, 0.4], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    tokens = DRAWS["fixed"].sample(q, np.zeros((3, 2)))
    assert tokens.tolist() == [[1, 3], [2, -1], [-1, -1]]
    assert DRAWS["fixed"].probability(q, tokens).tolist() == [1, 1, 1]
    assert DRAWS["fixed"].probability(q, tokens[:, ::-1].copy()).tolist() == [0, 0, 1]


def test_how_many_are_on_top_is_the_same_in_any_precision_and_order() -> None:
    """The guesses are drawn by it and verified by it, in places that may differ in both."""
    random = np.random.default_rng(5)
    rest = random.dirichlet(np.ones(40), 500)
    q = np.concatenate([np.full((500, 1), 0.37), 0.63 * rest], axis=1).astype(np.float32)  # 0.74 of an even share of 2
    found = tops(q, 2)
    assert 0 < found.sum() < 500
    order = random.permutation(41)
    padded = np.insert(q, [3, 7, 20], 0, axis=1)
    for other in (q.astype(np.float64), q[:, order], padded, torch.from_numpy(q)):
        assert tops(other, 2).tolist() == found.tolist()


@pytest.mark.parametrize("draw", ALL)
def test_torch_draws_what_numpy_draws(draw: Draw) -> None:
    q = np.stack([table(seed, 4, abstain=0.2)(()).astype(np.float64) for seed in range(40)])
    count = np.arange(40)
    u = uniforms(count, count, count, Lane.DRAFT, 3)
    ours = draw.sample(q, u)
    theirs = draw.sample(torch.from_numpy(q), torch.from_numpy(u))
    assert ours.tolist() == theirs.tolist()
    np.testing.assert_allclose(
        draw.probability(q, ours), draw.probability(torch.from_numpy(q), theirs), rtol=0, atol=1e-12
    )
    assert np.all(draw.probability(q, ours) > 0)
