"""Hull and peel on the device, against draftproof.hull on the same masses."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch

from draftproof.verify import optimal
from draftproof.verify.optimal_binned import BINS, WIDTH
from tests.support.marks import INTERPRETED

pytestmark = INTERPRETED

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
UNIT = 2.0**60
SEEDS = {  # with which several guesses may be the pick, where that can be
    "full": (8, 44),
    "sparse": (7, 53),
    "no target below": (10, 8),
    "no draft": (13, 24),
    "one bin": (0, 4),
    "outermost": (20, 8),
    "peaked": (1, 116),
    "equal": (0, 3),
    "far apart": (59, 126),
}


def masses(shape: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """p and q of each bin in ascending order of p/q, in whole numbers of 1 / UNIT."""
    rng, k = np.random.default_rng(seed), np.arange(BINS)
    q = rng.gamma(0.5, size=BINS) + 1e-3
    slope = {"equal": 0.0, "far apart": 2.5}.get(shape, rng.choice([0.02, 0.1, 0.3, 1.0]))
    ratio = np.exp((k - BINS / 2) * WIDTH * slope)
    if shape == "peaked":
        q[rng.integers(BINS)] = 1e6
    kept = {
        "sparse": rng.random(BINS) < 0.1,
        "one bin": k == 400,
        "outermost": (k == 0) | (k == BINS - 1),
    }.get(shape, k >= 0)
    q = q * kept
    p = q * ratio * (k >= (600 if shape == "no target below" else 0))
    q = q * (rng.random(BINS) < (0.3 if shape == "no draft" else 1))
    return np.floor(p / p.sum() * UNIT) / UNIT, np.floor(q / q.sum() * UNIT) / UNIT


def drawn(q: np.ndarray, seed: int, room: int = 6) -> np.ndarray:
    """Bins of two guesses or more in random places of `room`, -1 in the others; the second guess is near the first."""
    rng, count = np.random.default_rng(seed), 2 + seed % 5
    there = np.nonzero(q)[0]
    found = rng.choice(there, size=count, p=q[there] / q[there].sum())
    near = np.searchsorted(there, found[0]) + rng.integers(-2, 3)  # sometimes the same
    found[1] = there[np.clip(near, 0, len(there) - 1)]
    tokens = np.full(room, -1)
    tokens[np.sort(rng.permutation(room)[:count])] = found
    return tokens


def planned(p: np.ndarray, q: np.ndarray, tokens: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """The pick's law in each bin, and the chances, by the kernel."""
    launch = importlib.import_module("draftproof.kernels.star.launch")
    batch, count = tokens.shape
    scratch = launch.PickScratch.of(batch, count, 8, torch.device(DEVICE))
    scratch.masses_ptr.copy_(torch.from_numpy((np.stack([p, q], axis=1) * UNIT).astype(np.int64)))
    scratch.bin_ptr.copy_(torch.from_numpy(tokens))
    launch.plan_pick[(batch,)](scratch, count, BLOCK_K=launch.next_power_of_2(count + 1), num_warps=8)
    return scratch.share_ptr.cpu() * torch.from_numpy(q / q.sum(1, keepdims=True)), scratch.chosen_ptr.cpu()


def right(p: np.ndarray, q: np.ndarray, tokens: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by the law."""
    return optimal.choose(*(torch.from_numpy(part) for part in (p, q, tokens)))


def assert_close(found: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...], tolerance: float = 1e-9) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("shape", SEEDS)
def test_the_plan_is_the_law_s(shape: str) -> None:
    rows = [masses(shape, seed) for seed in SEEDS[shape]]
    p, q = (np.stack(part) for part in zip(*rows, strict=True))
    tokens = np.stack([drawn(row, seed) for row, seed in zip(q, SEEDS[shape], strict=True)])
    wanted = right(p, q, tokens)
    assert_close(planned(p, q, tokens), wanted)
    several = ((wanted[1] > 0.01) & (wanted[1] < 0.99)).any(1)
    assert several.all() or shape in ("one bin", "equal")


def test_one_guess_or_none() -> None:
    p, q = (np.stack([part] * 2) for part in masses("full", 2))
    tokens = np.array([[-1, 300, -1], [-1, -1, -1]])
    found = planned(p, q, tokens)
    assert_close(found, right(p, q, tokens))
    assert found[1].tolist() == [[0, 1, 0], [0, 0, 0]]


def test_a_guess_that_cannot_have_been_drawn_is_not_the_pick() -> None:
    p, q = masses("sparse", 3)
    there, empty = np.nonzero(q)[0], np.nonzero(q == 0)[0]
    tokens = np.array([[empty[-1], there[40], empty[3], there[40]]])
    found = planned(p[None], q[None], tokens)
    assert_close(found, right(p[None], q[None], tokens))
    assert found[1].tolist() == [[0, 1, 0, 0]]


def test_neighbours_the_wrong_way_round() -> None:
    """Where rounding has put a bin before one of a smaller ratio, the plan moves by no more than that."""
    p, q = masses("full", 8)
    tokens = drawn(q, 8)
    tokens = np.where(tokens == tokens.max(), 500, np.where(tokens >= 0, 499, -1))[None]
    p[500] = p[499] / q[499] * q[500] * (1 - 1e-6)
    found = planned(p[None], q[None], tokens)
    assert_close(found, right(p[None], q[None], tokens), 1e-5)
    assert found[1].sum().item() == pytest.approx(1, abs=1e-12)
    assert (found[1] >= 0).all()
