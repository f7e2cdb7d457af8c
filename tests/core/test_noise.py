"""Counted noise: the published generator, the same on every backend, and no number used twice."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from draftproof.errors import DraftproofError
from draftproof.noise import Lane, check_seed, philox, uniforms
from tests.support import gof

# (counter, key, output) of Philox4x32-10 from Random123's kat_vectors.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
@pytest.mark.parametrize("asarray", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_philox_known_answers(counter: str, key: str, output: str, asarray: type) -> None:
    def words(text: str) -> tuple:
        return tuple(asarray([int(word, 16)]) for word in text.split())

    assert [int(word[0]) for word in philox(words(counter), words(key))] == [int(w, 16) for w in output.split()]


def test_numpy_and_torch_are_bitwise_equal() -> None:
    seed, request, step = np.array([0, 1, 2**63 - 1]), np.array([0, 5, 2**31]), np.array([0, 7, 10**6])
    for lane in Lane:
        ours = uniforms(seed, request, step, lane, 9)
        theirs = uniforms(*map(torch.from_numpy, (seed, request, step)), lane, 9)
        assert ours.dtype == np.float64
        assert ours.shape == (3, 9)
        assert np.array_equal(ours, theirs.numpy())
        assert np.all((ours >= 0) & (ours < 1))


def test_no_number_is_used_twice() -> None:
    """All names over seeds, requests, steps, lanes and indices: numbers of 53 bits, all different."""
    axes = np.array([0, 1, 2, 1000, 2**31]), np.arange(6), np.arange(40)
    seed, request, step = (grid.ravel() for grid in np.meshgrid(*axes, indexing="ij"))
    numbers = np.concatenate([uniforms(seed, request, step, lane, 13).ravel() for lane in Lane])
    assert len(np.unique(numbers)) == numbers.size == 5 * 6 * 40 * 13 * len(Lane)


def test_high_half_of_the_seed_counts() -> None:
    seeds = np.array([3, 3 + 2**32, 3 + 2**62])
    assert len(np.unique(uniforms(seeds, seeds * 0, seeds * 0, Lane.STOP, 1))) == 3


def test_a_number_depends_on_its_name_alone() -> None:
    """Not on the batch it is drawn in, nor on how many are drawn with it."""
    batch = uniforms(np.array([4, 9]), np.array([1, 2]), np.array([3, 8]), Lane.NEXT, 6)
    alone = uniforms(np.array([9]), np.array([2]), np.array([8]), Lane.NEXT, 2)
    assert np.array_equal(batch[1:, :2], alone)


@pytest.mark.parametrize("axis", ["request", "step", "index"])
def test_uniform_along_each_axis(axis: str) -> None:
    count = 20_000
    run, zero = np.arange(count), np.zeros(count, dtype=np.int64)
    if axis == "index":
        u = uniforms(zero[:1] + 11, zero[:1], zero[:1], Lane.DRAFT, count)[0]
    else:
        names = {"request": (run, zero), "step": (zero, run)}[axis]
        u = uniforms(zero + 11, *names, Lane.DRAFT, 1)[:, 0]
    gof.check(Counter((u * 64).astype(int).tolist()), dict.fromkeys(range(64), 1 / 64))
    gof.check(Counter(((u * 2**30).astype(int) % 64).tolist()), dict.fromkeys(range(64), 1 / 64))  # bits 25 to 30


def test_neighbours_are_independent() -> None:
    """Pairs of numbers whose names differ by one step or one lane fill the square evenly."""
    run = np.arange(20_000)
    here, lane = (uniforms(run * 0 + 1, run * 0, run, lane, 1)[:, 0] for lane in (Lane.STOP, Lane.NEXT))
    for other in (np.roll(here, 1), lane):
        cells = (here * 16).astype(int) * 16 + (other * 16).astype(int)
        gof.check(Counter(cells.tolist()), dict.fromkeys(range(256), 1 / 256))


def test_gof_can_fail() -> None:
    """A loaded die is caught, an impossible outcome too, and a sample that is too small is refused."""
    law = {0: 0.5, 1: 0.5, 2: 0.0}
    gof.check({0: 5050, 1: 4950}, law)
    with pytest.raises(AssertionError, match="chi-square"):
        gof.check({0: 5500, 1: 4500}, law)
    with pytest.raises(AssertionError, match="probability zero"):
        gof.check({0: 5000, 1: 4999, 2: 1}, law)
    with pytest.raises(ValueError, match="too few"):
        gof.check({0: 4, 1: 5}, law)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, "7", None])
def test_bad_seed(seed: object) -> None:
    with pytest.raises(DraftproofError, match=r"^seed must be an integer from 0 to 2\*\*63 - 1, not .+$"):
        check_seed(seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_good_seed(seed: int) -> None:
    assert check_seed(seed) == seed
