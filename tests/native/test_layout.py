"""Weights are laid out in C as torch would do it, to the last bit."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from draftproof.models.files.int8_file import rounded
from draftproof.native import build, column_maxima, layers

SHAPES = [(64, 96), (72, 96), (33, 8), (1, 72), (5, 200), (40, 70)]


def weights(shape: tuple[int, int]) -> torch.Tensor:
    torch.manual_seed(shape[0])
    made = torch.randn(shape) * torch.logspace(-3, 3, shape[0])[:, None]
    made[0] = 0
    return made


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("smooth", [False, True])
def test_integers(shape, smooth):
    if build.compiled() is None:
        pytest.skip("this machine has no integer layers in C")
    weight, smoothing = weights(shape), torch.rand(shape[1]) + 0.5 if smooth else None
    whole, scale = rounded(weight if smoothing is None else weight * smoothing)
    missing, deep = -shape[0] % layers.GROUP, shape[1] + -shape[1] % 8
    grouped = F.pad(whole, (0, deep - shape[1], 0, missing)).view(-1, layers.GROUP, deep // 4, 4).transpose(1, 2)
    made = layers.lay_out_int8(weight, smoothing, torch.ones(shape[0]))
    assert made is not None
    assert torch.equal(made.weights, grouped)
    wanted = (scale, whole.sum(dim=1).int(), torch.ones(shape[0]))
    for ours, theirs in zip(made.others, wanted, strict=False):
        assert torch.equal(ours, F.pad(theirs, (0, missing)))


@pytest.mark.parametrize("shape", SHAPES)
def test_floats(shape):
    if build.compiled() is None or not build.compiled().has_floats():
        pytest.skip("this machine has no float layers in C")
    weight = weights(shape)
    made = layers.lay_out_float32(weight, None)
    assert made is not None
    grouped = F.pad(weight, (0, 0, 0, -shape[0] % layers.GROUP)).view(-1, layers.GROUP, shape[1])
    assert torch.equal(made.weights, grouped.transpose(1, 2))
    assert torch.equal(made.dense, weight)
    assert layers.lay_out_float32(weight.double(), None) is None
    transposed = layers.lay_out_float32(weight.t().contiguous().t(), None)  # not contiguous
    assert transposed is not None
    assert torch.equal(transposed.weights, made.weights)


@pytest.mark.parametrize("compiled", [True, False])
def test_maxima(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(build, "compiled", lambda: None)
    for shape in SHAPES:
        assert torch.equal(column_maxima(weights(shape)), weights(shape).abs().amax(dim=0))
