"""The noise and draws from given masses on the device: those of noise.py and law.py to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from draftproof import law
from draftproof.kernels import NoiseKeys
from draftproof.kernels.lib.codes import NO_TOKEN
from draftproof.kernels.lib.inverse_cdf import search_chunks, token_at
from draftproof.kernels.lib.uniform import uniform
from draftproof.noise import Lane, uniforms

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAST = 1 - 2.0**-53  # the largest uniform


@triton.jit
def number(noise, lane, index, out):
    b = tl.program_id(0)
    tl.store(out + b, uniform(noise, b, lane, index))


def test_uniforms_are_those_of_the_noise() -> None:
    """Keys that differ in every word from sequence to sequence."""
    b = torch.arange(9, device=DEVICE)
    noise = NoiseKeys((b + 3) * 0x123456789ABCD, 5 * b + 1, 11 * b + 2)
    for lane in Lane:
        for index in (0, 1, 9):
            out = torch.empty(len(b), dtype=torch.float64, device=DEVICE)
            number[(len(b),)](noise, int(lane), index, out)
            assert torch.equal(out, uniforms(*noise, lane, index + 1)[:, index])


@triton.jit
def draw(laws, u, out, CHUNKS: tl.constexpr, CHUNK: tl.constexpr):
    """A token of a law of CHUNKS chunks, as every kernel that emits one draws it."""
    b = tl.program_id(0)
    laws += b * CHUNKS * CHUNK
    ids = tl.arange(0, CHUNKS)[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    sums = tl.sum(tl.load(laws + ids), 1)
    o, end, running, threshold, _ = search_chunks(sums, tl.load(u + b), CHUNKS * CHUNK, CHUNK)
    token, final = o * 0 + NO_TOKEN, o * 0
    while (o < end) & (token == NO_TOKEN):
        inside = o + tl.arange(0, CHUNK)
        token, last, running = token_at(inside, tl.load(laws + inside), running, threshold)
        final = tl.maximum(final, last)
        o += CHUNK
    tl.store(out + b, tl.minimum(token, final).to(tl.int64))


@pytest.mark.parametrize("few", [False, True], ids=["many tokens", "few tokens"])
def test_draws_at_the_boundaries_of_tokens_and_chunks(few: bool) -> None:
    """Laws in 64ths, of which sums are exact, so that a uniform hits boundaries; with chunks that have no mass."""
    chance = np.random.default_rng(few)
    made = np.zeros((6, 16))
    for row in made:
        np.add.at(
            row, chance.choice(16, 3)[chance.integers(3, size=64)] if few else chance.integers(16, size=64), 1 / 64
        )
    for u in (*np.arange(64) / 64, np.nextafter(0.5, 0), LAST, 1.0):  # one: as if u times the total had been rounded up
        out = torch.empty(len(made), dtype=torch.int64, device=DEVICE)
        laws, numbers = (torch.as_tensor(array, device=DEVICE) for array in (made, np.full(len(made), u)))
        draw[(len(made),)](laws, numbers, out, CHUNKS=4, CHUNK=4)
        assert out.tolist() == law.sample(made, np.full(len(made), u)).tolist()
