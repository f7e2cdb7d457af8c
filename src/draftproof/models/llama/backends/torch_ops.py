"""Layers by torch: for every device, precision and length, and the reference for the other backends."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

from draftproof.models.llama.call import KVLayer, LayerCall
from draftproof.models.llama.placement import Placement

# cuDNN's attention is not among them: it compiles for every length of a text, which takes 40 milliseconds each time
ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def fits(blocks: Any, x: torch.Tensor, call: LayerCall, first: int, keep: Sequence[int]) -> bool:
    return True


def run(blocks: Any, x: torch.Tensor, call: LayerCall, first: int, keep: Sequence[int]) -> tuple[torch.Tensor, Any]:
    call = call.written_out(x.dtype)
    rotation, inputs = call.angles(x.dtype), []
    with sdpa_kernel(ATTENTION) if x.is_cuda and not torch.compiler.is_compiling() else nullcontext():
        for block, mask, layer in blocks.layers(call, first):
            if keep:
                inputs.append(x)
            q, k, v = block.project(x, rotation)
            x = block.finish(x, attend(q, k, v, mask, layer, call.placement))
    return x, inputs


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    layer: KVLayer | None,
    placement: Placement | None,
) -> torch.Tensor:
    """Attention output [B, T, heads * size] of queries, keys and values [B, heads, T, size]."""
    if layer is not None:
        k, v = layer.update(k, v, placement)
    grouped: dict[str, Any] = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **grouped).transpose(1, 2).flatten(2)
