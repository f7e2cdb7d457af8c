"""Heads with random weights for the tiny models, and drafters by the name of their kind."""

from __future__ import annotations

import torch

from draftproof.models.drafters.head import HeadModel
from draftproof.models.llama.block import LayerShape
from draftproof.models.llama.head import HeadConfig, HeadNetwork
from tests.support import tiny

TAPS = (0, 1, 2)


SHAPE = LayerShape(width=32, heads=4, shared=2, size=8, inner=48)


def network(layers=1, taps=TAPS, seed=5, origin=(), shape=SHAPE):
    """Random weights; half of the tokens can be guessed."""
    torch.manual_seed(seed)
    made = HeadNetwork(HeadConfig(shape, layers, taps, 10000.0, tiny.VOCABULARY // 2, origin))
    with torch.no_grad():
        for weight in made.parameters():
            weight.mul_(1 + torch.rand_like(weight)) if weight.ndim == 1 else weight.mul_(2)
    made.tokens.copy_(torch.arange(0, tiny.VOCABULARY, 2))
    return made.eval().requires_grad_(False)


def drafter(kind, target):
    """A head, a head with one tap, none, or a tiny model of that family."""
    if kind.startswith("head"):
        return HeadModel(target, network(taps=(1,) if kind == "head, one tap" else TAPS))
    return None if kind == "none" else tiny.model(kind, 1)
