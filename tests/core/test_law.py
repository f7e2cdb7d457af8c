"""Arithmetic on laws, and the sampler that never returns a token of probability zero."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftproof import law
from draftproof.noise import Lane, uniforms
from tests.support import gof
from tests.support.tables import table

ALMOST_ONE = np.nextafter(1.0, 0.0)


@pytest.mark.parametrize("backend", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("u", [0.0, 5e-324, 0.5, ALMOST_ONE])
def test_sample_never_returns_probability_zero(backend: type, dtype: str, u: float) -> None:
    rows = [[0, 0, 0.25, 0, 0.75, 0, 0], [0, 0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0, 0], [0.1] * 3 + [0] * 2 + [0.35] * 2]
    laws = np.array(rows, dtype=dtype)
    token = law.sample(backend(laws), backend(np.full(len(rows), u)))
    assert np.all(laws[np.arange(len(rows)), np.asarray(token)] > 0)
    assert (
        np.asarray(token).tolist()
        == {
            0.0: [2, 6, 0, 0],
            5e-324: [2, 6, 0, 0],
            0.5: [4, 6, 0, 5],
            ALMOST_ONE: [4, 6, 0, 6],
        }[u]
    )


@pytest.mark.parametrize("backend", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_the_last_token_that_can_be_is_drawn_where_rounding_reaches_the_sum(backend: type) -> None:
    """u times the sum is the sum itself: no token's interval holds it."""
    laws = np.array([[0, 5e-324, 0, 5e-324, 0], [5e-324, 0, 0, 0, 0]])
    for rows in (laws, laws[:1], laws[1:]):
        u = np.full(len(rows), ALMOST_ONE)
        assert (u * rows.sum(axis=1) == rows.sum(axis=1)).all()
        assert law.sample(backend(rows), backend(u)).tolist() == [row.nonzero()[0][-1] for row in rows]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(lambda w: sum(w) > 1e-300), st.floats(0, ALMOST_ONE))
def test_sample_returns_the_interval_that_holds_u(weights: list[float], u: float) -> None:
    weights_ = np.array(weights)
    token = int(law.sample(weights_[None], np.array([u]))[0])
    assert weights_[token] > 0
    cumulated, total = np.cumsum(weights_), np.cumsum(weights_)[-1]
    assert token == 0 or cumulated[token - 1] <= u * total
    assert u * total < cumulated[token] or cumulated[token] == total


@pytest.mark.parametrize("backend", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_a_row_alone_gives_the_token_it_gives_in_company(backend: type) -> None:
    """One row is searched, several are counted through."""
    rng = np.random.default_rng(0)
    laws = rng.random((40, 300)).astype(np.float32) * (rng.random((40, 300)) < 0.3)
    u = rng.random(40)
    u[:3] = 0.0, ALMOST_ONE, 0.5
    together = law.sample(backend(laws), backend(u))
    alone = [int(law.sample(backend(laws[i : i + 1]), backend(u[i : i + 1]))[0]) for i in range(40)]
    assert alone == together.tolist()


@pytest.mark.parametrize("shape", [(3,), (1,), (2, 3)])
@pytest.mark.parametrize("backend", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_what_is_computed_of_many_rows_is_that_of_each(backend: type, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    p, q = (rng.random((*shape, 5)) * (rng.random((*shape, 5)) < 0.7) for _ in range(2))
    q[..., 1:2] = p[..., 1:2]  # equal here and there
    tokens = rng.integers(-1, 5, shape)

    def computed(p, q, tokens):
        p, q, tokens = backend(p), backend(q), backend(tokens)
        made = [law.normalise(p), law.residual(p, q), law.capped_ratio(p, q), law.one_hot(tokens, like=p)]
        return [np.asarray(x) for x in (*made, law.overlap(p, q), law.total_variation(p, q))]

    together = computed(p, q, tokens)
    for place in np.ndindex(shape):
        for whole, alone in zip(together, computed(p[place], q[place], tokens[place]), strict=True):
            np.testing.assert_allclose(whole[place], alone, atol=1e-15)
    drawn = tokens >= 0
    assert (np.asarray(law.at(backend(p), backend(tokens)))[drawn] == p[drawn, tokens[drawn]]).all()


def test_sample_is_exact_on_a_grid() -> None:
    """D uniforms on a law of parts 1/D give every token as often as its probability says: no boundary is off."""
    for seed in range(20):
        row = table(seed, 4, parts=11)(())
        grid = np.array([Fraction(k, 11) for k in range(11)])
        counts = Counter(law.sample(np.stack([row] * 11), grid).tolist())
        assert {t: Fraction(c, 11) for t, c in counts.items()} == {t: m for t, m in enumerate(row) if m}


def test_sample_frequencies() -> None:
    row, samples = np.array([0.0, 0.2, 0.05, 0.0, 0.45, 0.3]), 20_000
    run = np.arange(samples)
    u = uniforms(run * 0 + 5, run * 0, run, Lane.NEXT, 1)[:, 0]
    gof.check(Counter(law.sample(np.stack([row] * samples), u).tolist()), dict(enumerate(row)))


@pytest.mark.parametrize("backend", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_sample_a_large_float32_vocabulary(backend: type) -> None:
    """200,000 equal tokens: a sum in float32 would drift; every u lands in the token that owns it."""
    size, u = 200_000, np.array([0.0, 0.25, 0.5, 0.999999, ALMOST_ONE])
    row = np.full((len(u), size), 1 / size, dtype=np.float32)
    tokens = np.asarray(law.sample(backend(row), backend(u)))
    assert np.all(abs(tokens - u * size) <= 1)
    assert tokens[-1] == size - 1


def test_sample_of_the_zero_row_is_a_token() -> None:
    """Nothing was drawn: whoever masks the outcome may still index with it."""
    assert law.sample(np.zeros((1, 4)), np.array([0.5])).tolist() == [0]


def test_sample_leading_axes() -> None:
    rows = np.stack([np.eye(4), np.eye(4)[::-1]])  # [2, 4, 4]
    assert law.sample(rows, np.full((2, 4), 0.3)).tolist() == [[0, 1, 2, 3], [3, 2, 1, 0]]


def test_residual_and_overlap_split_p() -> None:
    """min(p, q) plus the missing mass times the residual is p: the identity behind every rule."""
    for seed in range(30):
        p, q = table(seed, 4)(()), table(seed + 100, 4)(())
        accepted = law.overlap(p, q)
        assert accepted + law.total_variation(p, q) == 1
        kept = np.where(p < q, p, q)
        assert list(kept + (1 - accepted) * law.residual(p, q)) == list(p)


def test_residual_of_equal_laws_is_p() -> None:
    p = table(1, 4)(())
    assert list(law.residual(p, p)) == list(p)
    assert list(law.residual(p, p * 0)) == list(p)  # nothing was drawn


def test_normalise_keeps_the_zero_row() -> None:
    assert law.normalise(np.array([[2.0, 6.0], [0.0, 0.0]])).tolist() == [[0.25, 0.75], [0.0, 0.0]]


def test_divide_never_divides_by_zero() -> None:
    found = law.divide(np.array([1.0, 0.0, 3.0]), np.array([0.0, 0.0, 2.0]), otherwise=1)
    assert found.tolist() == [1.0, 1.0, 1.5]


@pytest.mark.parametrize("backend", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_indexing(backend: type) -> None:
    rows = backend(np.arange(12.0).reshape(2, 2, 3))
    tokens = backend(np.array([[2, -1], [0, 1]]))
    assert law.at(rows, tokens).tolist() == [[2.0, 3.0], [6.0, 10.0]]
    assert law.row(rows, backend(np.array([1, 0]))).tolist() == [[3.0, 4.0, 5.0], [6.0, 7.0, 8.0]]
    assert law.one_hot(tokens, like=rows).tolist() == [[[0, 0, 1], [0, 0, 0]], [[1, 0, 0], [0, 1, 0]]]
