"""Controls that transformers lacks, schedules, and properties that hold for every law."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftproof.sampling import Anneal, ByEntropy, Context, Sampling, law


def softmax(rows: np.ndarray) -> np.ndarray:
    weights = np.exp(rows - rows.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


ROWS = np.random.default_rng(0).normal(size=(3, 6)) * 2


def test_defaults_are_the_models_own_law() -> None:
    np.testing.assert_allclose(law(ROWS, Sampling()), softmax(ROWS), rtol=0, atol=1e-15)


def test_presence_and_frequency_count_the_output_alone() -> None:
    """score - presence * [count > 0] - frequency * count, over the output and not the prompt."""
    contexts = [Context((0, 0, 1), (2, 2, 5)), Context((4,), ()), Context((), (3,))]
    counts = np.array([[0, 0, 2, 0, 0, 1], [0] * 6, [0, 0, 0, 1, 0, 0]])
    ours = law(ROWS, Sampling(presence_penalty=0.7, frequency_penalty=-0.4), contexts)
    np.testing.assert_allclose(ours, softmax(ROWS - 0.7 * (counts > 0) + 0.4 * counts), rtol=0, atol=1e-15)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_schedule_sees_how_even_the_law_is(size: int) -> None:
    """From 0, all on one token, to 1, all alike; a vocabulary of one token has nothing to be uneven about."""
    seen: list[float] = []

    def schedule(position: np.ndarray, evenness: np.ndarray) -> np.ndarray:
        seen.extend(evenness.tolist())
        return position * 0 + 1

    rows = np.zeros((2, size))
    rows[0, 1:] = -np.inf
    made = law(rows, Sampling(temperature=schedule), [Context((0,), ())] * 2)
    np.testing.assert_allclose(made, softmax(rows), rtol=0, atol=1e-15)
    np.testing.assert_allclose(seen, [0, min(size - 1, 1)], rtol=0, atol=1e-15)


@pytest.mark.parametrize("backend", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_temperature_zero_is_greedy(backend: type) -> None:
    """All mass on the largest score, the first of equals."""
    rows = backend(np.array([[1.0, 3.0, 2.0], [5.0, 0.0, 5.0]]))
    assert law(rows, Sampling(temperature=0)).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert law(rows, Sampling(temperature=0, banned=[1], top_p=0.5)).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_anneal_is_a_straight_line_then_constant() -> None:
    value = Anneal(2.0, 1.0, over=4)(np.array([0.0, 1.0, 2.0, 4.0, 9.0]), np.zeros(5))
    assert value.tolist() == [2.0, 1.75, 1.5, 1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_anneal_keeps_whole_numbers_whole_and_ends_at_its_end(dtype: torch.dtype) -> None:
    """A top_k is rounded up, so 15.000001 would be 16; a temperature that ends a little below 0 would be refused."""
    position = torch.arange(101, dtype=dtype)
    assert Anneal(1, 101, over=100)(position, position * 0).tolist() == list(range(1, 102))
    for start in range(1, 100):
        assert Anneal(start / 100, 0.0, over=7)(position, position * 0)[7:].tolist() == [0.0] * 94


def test_by_entropy_runs_from_low_to_high() -> None:
    assert ByEntropy(5, 100)(np.zeros(3), np.array([0.0, 0.5, 1.0])).tolist() == [5.0, 52.5, 100.0]


def contexts(lengths: tuple[int, ...]) -> list[Context]:
    return [Context((1,), (0,) * length) for length in lengths]


@pytest.mark.parametrize("backend", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("name", "start", "end"),
    [
        ("temperature", 2.0, 0.5),
        ("top_k", 5.0, 1.0),
        ("top_k", 8.0, 0.0),  # more than there are; off
        ("top_p", 1.0, 0.4),
        ("min_p", 0.0, 0.5),
        ("typical_p", 1.0, 0.3),
        ("epsilon_cutoff", 0.0, 0.2),
        ("eta_cutoff", 0.0, 0.2),
    ],
)
def test_a_schedule_is_its_value_row_by_row(backend: type, name: str, start: float, end: float) -> None:
    """Each row's law is the law of the constant that the schedule gives at its position."""
    ours = law(backend(ROWS), Sampling(**{name: Anneal(start, end, over=4)}), contexts((0, 2, 7)))
    for r, value in enumerate([start, (start + end) / 2, end]):
        constant = int(value) if name == "top_k" else value
        wanted = law(ROWS[r : r + 1], Sampling(**{name: constant}))
        np.testing.assert_allclose(ours[r : r + 1], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["top_p", "typical_p"])
def test_a_schedule_of_one_is_off(backend: type, dtype: type, name: str) -> None:
    """Unlikely tokens stay, although the sum of the others rounds to one without them."""
    rows = backend((np.random.default_rng(3).normal(size=(4, 1000)) * 8).astype(dtype))
    ours = law(rows, Sampling(**{name: lambda position, evenness: position * 0 + 1}), contexts((0, 1, 2, 3)))
    assert ((ours > 0) == (law(rows, Sampling()) > 0)).all()


def test_annealing_to_greedy() -> None:
    ours = law(ROWS, Sampling(temperature=Anneal(1.0, 0.0, over=2)), contexts((0, 1, 2)))
    assert [(row > 0).sum() for row in ours] == [6, 6, 1]


def test_less_entropy_keeps_fewer_tokens() -> None:
    """The same row, ever sharper: entropy falls, and so does the number of tokens that stay."""
    row = np.random.default_rng(1).normal(size=200)
    rows = np.stack([row * sharpness for sharpness in (0.0, 0.5, 1.0, 2.0, 4.0, 30.0)])
    for sampling in (Sampling(top_k=ByEntropy(1, 200)), Sampling(top_p=ByEntropy(0.1, 1.0))):
        kept = (law(rows, sampling, contexts((0,) * 6)) > 0).sum(axis=1).tolist()
        assert kept == sorted(kept, reverse=True)
        assert kept[0] == 200
        assert kept[-1] < 5


@pytest.mark.parametrize("size", [2, 3, 7, 200, 1001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_flat_row_has_evenness_one(size: int, dtype: torch.dtype) -> None:
    """However its entropy rounds: top_p = ByEntropy(..., 1.0) must not leave (0, 1]."""
    rows = torch.zeros(1, size, dtype=dtype)
    assert torch.all(law(rows, Sampling(top_p=ByEntropy(0.6, 1.0)), contexts((0,))) > 0)


def test_evenness_is_entropy_over_its_maximum() -> None:
    heard = []

    def listen(position: np.ndarray, evenness: np.ndarray) -> np.ndarray:
        heard.append((position.tolist(), evenness.tolist()))
        return position * 0 + 1.0

    law(np.array([[0.0, 0.0, -np.inf, -np.inf], [0.0, 0.0, 0.0, 0.0]]), Sampling(temperature=listen), contexts((3, 0)))
    ((position, evenness),) = heard
    assert position == [3.0, 0.0]
    assert evenness == pytest.approx([math.log(2) / math.log(4), 1.0], abs=1e-12)


rows_of_logits = st.lists(
    st.lists(st.integers(-8, 8).map(float) | st.floats(-20, 20), min_size=5, max_size=5), min_size=1, max_size=4
)
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0, 0.3, 1.0, 1.7]),
    top_k=st.integers(0, 7),
    top_p=st.floats(0.05, 1.0),
    min_p=st.floats(0.0, 1.0),
    typical_p=st.floats(0.05, 1.0),
    epsilon_cutoff=st.floats(0.0, 0.9),
    eta_cutoff=st.floats(0.0, 0.9),
    repetition_penalty=st.floats(0.5, 2.0),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    logit_bias=st.dictionaries(st.integers(0, 4), st.floats(-5, 5)),
    allowed=st.just([0, 1, 3, 4]),
    banned=st.lists(st.sampled_from([2, 3]), max_size=2),
)


@given(rows_of_logits, samplings)
def test_every_law_is_a_law_on_the_tokens_that_may_stay(rows: list[list[float]], sampling: Sampling) -> None:
    logits = np.array(rows)
    history = [Context((0, 1), (1, 4) * r) for r in range(len(rows))]
    ours = law(logits, sampling, history)
    assert np.all(ours >= 0)
    assert np.all(abs(ours.sum(axis=1) - 1) < 1e-12)
    assert not np.any(ours[:, [2, *sampling.banned]])
    if sampling.temperature == 0:
        assert np.all((ours > 0).sum(axis=1) == 1)


@given(rows_of_logits, samplings)
def test_a_row_does_not_depend_on_its_batch(rows: list[list[float]], sampling: Sampling) -> None:
    logits = np.array(rows)
    history = [Context((0, 1), (1, 4) * r) for r in range(len(rows))]
    ours = law(logits, sampling, history)
    assert np.array_equal(law(logits[::-1], sampling, history[::-1])[::-1], ours)
    assert np.array_equal(law(logits[:1], sampling, history[:1]), ours[:1])
