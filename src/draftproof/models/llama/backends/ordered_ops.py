"""Layers of 8-bit integers by torch, to the last bit as in C: where there is no compiler, and much slower.

Attention adds its products one by one, so a long prompt takes many times as long as with torch's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from draftproof.models.llama import ordered
from draftproof.models.llama.backends.linear import LaidOut
from draftproof.models.llama.call import LayerCall


def fits(blocks: Any, x: torch.Tensor, call: LayerCall, first: int, keep: Sequence[int]) -> bool:
    return any(isinstance(linear, LaidOut) and linear.ordered for block in blocks[:1] for linear in block.linears)


def run(blocks: Any, x: torch.Tensor, call: LayerCall, first: int, keep: Sequence[int]) -> tuple[torch.Tensor, Any]:
    call = call.written_out(x.dtype)
    (cos, sin), inputs = call.angles_on_host(), []
    for block, mask, layer in blocks.layers(call, first):
        if keep:
            inputs.append(x)
        shape = block.shape
        qkv = block.qkv(block.norm_in(x)).unflatten(-1, (-1, shape.size)).transpose(1, 2)
        turned, v = qkv[:, : -shape.shared], qkv[:, -shape.shared :]
        turned = turned * cos + turned.roll(shape.size // 2, dims=-1) * sin
        q, k = turned[:, : shape.heads], turned[:, shape.heads :]
        if layer is not None:
            k, v = layer.update(k, v, call.placement)
        attended = ordered.attend(q, k, v, _visible(mask, x, k.shape[2])).transpose(1, 2).flatten(2)
        x = x + block.out(attended)
        x = x + block.down(ordered.gate(block.gate_up(block.norm_mlp(x))))
    return x, inputs


def _visible(mask: torch.Tensor | None, x: torch.Tensor, slots: int) -> torch.Tensor:
    """[B, T, S]: which slots a token sees."""
    if mask is None:
        return torch.ones((1, x.shape[1], slots), dtype=torch.bool)
    return mask[:, 0] if mask.dtype == torch.bool else mask[:, 0] > -1e30
