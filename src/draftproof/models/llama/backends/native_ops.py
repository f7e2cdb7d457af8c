"""Norm, attention and gate in C, for calls of few tokens on a CPU whose weights are not laid out for C.

A small torch operation costs ten microseconds or more whatever it does, and these three are a dozen of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from draftproof import native
from draftproof.models.kv_cache import allocate
from draftproof.models.llama import ordered
from draftproof.models.llama.backends import torch_ops
from draftproof.models.llama.backends.linear import LaidOut
from draftproof.models.llama.call import LayerCall
from draftproof.models.llama.masks import Causal
from draftproof.models.llama.placement import PackedSlots, Range
from draftproof.models.llama.rotary import Rotation


def fits(blocks: Any, x: torch.Tensor, call: LayerCall, first: int, keep: Sequence[int]) -> bool:
    # under autocast products come in another precision, and with gradients torch has to see every operation
    return native.fits(x) and not (torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"))


def run(blocks: Any, x: torch.Tensor, call: LayerCall, first: int, keep: Sequence[int]) -> tuple[torch.Tensor, Any]:
    call = laid_open(call)
    rotation, inputs, attention = call.angles(x.dtype), [], None
    if takes(call, x):
        allocate(call.cache[first:], blocks.shape.shared, blocks.shape.size, x)
        attention = describe(call, rotation, x, blocks.shape, first)
    else:
        call = call.written_out(x.dtype)
    for block, mask, layer in blocks.layers(call, first):
        if keep:
            inputs.append(x)
        qkv = block.qkv(norm(block.norm_in, x))
        if attention is not None:
            attended = native.attend(qkv, attention, (layer.keys, layer.values), as_struct(mask))
        else:
            q, k, v = block.split(qkv, rotation)
            attended = torch_ops.attend(q, k, v, mask, layer, call.placement)
        x = x + block.out(attended)
        x = x + block.down(native.gate(block.gate_up(norm(block.norm_mlp, x))))
    return x, inputs


def laid_open(call: LayerCall) -> LayerCall:
    """The call with its rules written out in float32, except where all are causal: C follows those itself."""
    if all(isinstance(mask, Causal) for mask in call.masks.values()):
        return call
    return call.written_out(torch.float32)


def takes(call: LayerCall, x: torch.Tensor) -> bool:
    """Whether attention of this call, `laid_open`, can be done in C: entries in neighbouring rows, masks in float32."""
    if call.placement is None or isinstance(call.placement, PackedSlots) or call.rotation.rows != len(x):
        return False
    masks: list[Any] = list(call.masks.values())
    return all(isinstance(mask, Causal) or mask is None for mask in masks) or (
        all(isinstance(mask, torch.Tensor) for mask in masks)
        and masks[0].stride(3) == 1
        and all(mask.dtype == torch.float32 and mask.stride() == masks[0].stride() for mask in masks)
    )


def as_struct(mask: Any) -> native.MaskStruct:
    """A mask that `takes` accepts, for C."""
    return native.causal(mask.window) if isinstance(mask, Causal) else native.mask(mask)


def describe(call: LayerCall, rotation: Rotation, x: torch.Tensor, shape: Any, first: int) -> native.Attention:
    """The arguments of the C functions for a call that `takes` accepts."""
    placement: Any = call.placement
    (batch, tokens, _), room = x.shape, call.cache[first].keys.shape[2]
    mask: Any = next(iter(call.masks.values()))
    is_tensor = isinstance(mask, torch.Tensor)
    strides = (mask.stride(0) if len(mask) > 1 else 0, mask.stride(2)) if is_tensor else (0, 0)
    is_range = isinstance(placement, Range)
    start, slots = (placement.start, None) if is_range else (0, placement.slots.contiguous())
    heads = (shape.heads, shape.shared, shape.size)
    sizes = native.Sizes(batch, tokens, *heads, room, start, placement.begin, placement.end, *strides)
    return native.Attention(sizes, rotation.cos.contiguous(), rotation.sin.contiguous(), slots)


def norm(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """module(x), in C where x is small and the module an RMSNorm."""
    return norms((module, x))[0]


def norms(*pairs: tuple[nn.Module, torch.Tensor]) -> list[torch.Tensor]:
    """module(x) of each pair, in C where every x is small and every module an RMSNorm."""
    if all(isinstance(module, nn.RMSNorm) and native.fits(x) for module, x in pairs):
        return [native.norm(x, module.weight, module.eps or 0.0) for module, x in pairs]  # type: ignore[arg-type]
    return [module(x) for module, x in pairs]


def unit_norm(x: torch.Tensor, eps: float, layer: nn.Module) -> torch.Tensor:
    """x [B, T, ..., width] divided by its root mean square, in one order where it is for a layer that needs that."""
    width, in_order = x.shape[-1], isinstance(layer, LaidOut) and layer.ordered
    if native.fits(x, None if in_order else native.FEW):
        return native.norm(x, x.new_ones(width), eps)
    return ordered.norm(x, x.new_ones(width), eps) if in_order else F.rms_norm(x, (width,), eps=eps)
