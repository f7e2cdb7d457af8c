"""Layers as functions in C.

In the middle of a call every torch operation costs ten microseconds or more, whatever it does, and a layer has dozens.
Here all layers of a call are one function, which reads their weights as fast as memory gives them. A row's numbers are
summed in the same order whatever stands beside it, so its result is the same to the last bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F  # noqa: N812

from draftproof.native import build
from draftproof.native.build import Sizes

FEW, MANY = 32, 512  # tokens of a text in one call, for a single function and for all layers
LONGEST = 1 << 15  # slots that one token looks at
GROUP = 32  # columns of weights that lie together


class Linear(ctypes.Structure):
    """A linear layer and the norm before it, as layers.c has them."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weights", "scale", "sums", "bias", "gain")),
        ("floor", ctypes.c_float),
        *((name, ctypes.c_long) for name in ("width", "outputs")),
    )


class Layer(NamedTuple):
    """Weights as the C functions read them."""

    plan: Linear  # where everything is
    weights: torch.Tensor  # [N / 32, K / 4, 32, 4] int8, or [N / 32, K, 32] float32
    others: tuple[torch.Tensor | None, ...]  # scale, sums, bias, gain; the first three filled up to a multiple of 32

    @property
    def dense(self) -> torch.Tensor:
        """[N, K], of weights in float32."""
        return self.weights.transpose(1, 2).reshape(-1, self.plan.width)[: self.plan.outputs]


def lay_out(
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    gain: torch.Tensor | None = None,
    floor: float | None = None,
) -> Layer | None:
    """Integer weights [N, K] with a scale [N] each; None where the C function is not to be had.

    Each row of x [..., K] is multiplied by the gain [K] and, with a floor, divided by the root of floor^2 and the sum
    of its squares: with a suitable gain, RMSNorm. Then it is rounded to bytes.
    """
    outputs, width = weight.shape
    if width % 8 or build.compiled() is None or not build.compiled().has_linear():
        return None
    missing = -outputs % GROUP
    whole = F.pad(weight, (0, 0, 0, missing)).view(-1, GROUP, width // 4, 4).transpose(1, 2).contiguous()
    sums = weight.sum(dim=1).float() * scale
    filled = [None if one is None else F.pad(one, (0, missing)) for one in (scale, sums, bias)]
    return _layer(whole, (*filled, gain), floor, width, outputs)


def lay_out_floats(weight: torch.Tensor, bias: torch.Tensor | None) -> Layer | None:
    """Weights [N, K] in float32; None where the C function is not to be had."""
    outputs, width = weight.shape
    if width % 2 or build.compiled() is None or not build.compiled().has_floats():
        return None
    whole = F.pad(weight, (0, 0, 0, -outputs % GROUP)).view(-1, GROUP, width).transpose(1, 2).contiguous()
    return _layer(whole, (None, None, bias, None), None, width, outputs)


def _layer(
    weights: torch.Tensor, others: tuple[torch.Tensor | None, ...], floor: float | None, width: int, outputs: int
) -> Layer:
    others = tuple(None if one is None else one.contiguous() for one in others)
    places = (None if one is None else one.data_ptr() for one in (weights, *others))
    return Layer(Linear(*places, -1.0 if floor is None else floor, width, outputs), weights, others)


def linear(x: torch.Tensor, layer: Layer) -> torch.Tensor:
    """x [..., K] times the weights: [..., N]."""
    x, plan = x.contiguous(), layer.plan
    count = x.numel() // plan.width
    out = x.new_empty((*x.shape[:-1], plan.outputs))  # not torch.empty, which others may tell what to make
    room = x.new_empty(count * (plan.width + 2))
    build.compiled().linear(ctypes.byref(plan), x.data_ptr(), count, room.data_ptr(), out.data_ptr())
    return out


class Block(ctypes.Structure):
    """A layer of the Llama family, as layers.c has it."""

    _fields_ = tuple((name, Linear) for name in ("qkv", "out", "gate_up", "down"))


class Stack(NamedTuple):
    """Layers that follow one another, and what keeps them in memory."""

    layers: Any  # array of Block
    kept: list[Any]
    heads: int
    width: int  # of the widest thing a token is turned into


def stack(blocks: Any) -> Stack | None:
    """Blocks (llama.py) whose linear layers are all laid out, the norms before them included; else None."""
    kept: list[Any] = []
    table, widest = (Block * len(blocks))(), 0
    for entry, block in zip(table, blocks, strict=True):
        for name, norm in (("qkv", block.norm_in), ("out", None), ("gate_up", block.norm_mlp), ("down", None)):
            layer = getattr(getattr(block, name), "layer", None)
            if not isinstance(layer, Layer):
                return None
            plan = Linear.from_buffer_copy(layer.plan)
            if isinstance(norm, torch.nn.RMSNorm):  # else it is part of the layer
                kept.append(absorb(norm, plan))
            setattr(entry, name, plan)
            kept.append(layer)
            widest = max(widest, plan.outputs, plan.width)
    return Stack(table, kept, blocks[0].shape.heads, widest)


def absorb(norm: torch.nn.RMSNorm, plan: Linear) -> torch.Tensor:
    """Make the norm before a layer part of it; what it multiplies by."""
    gain, plan.floor = as_gain(norm)
    plan.gain = gain.data_ptr()
    return gain


def as_gain(norm: torch.nn.RMSNorm) -> tuple[torch.Tensor, float]:
    """The gain [K] and the floor with which `lay_out` means this norm."""
    gain: torch.Tensor = norm.weight.detach()
    width = len(gain)
    return gain * width**0.5, (width * (norm.eps or 0.0)) ** 0.5


def run(
    layers: Stack,
    x: torch.Tensor,
    rotation: Any,
    masks: Sequence[Any],
    stores: Sequence[Any],
    keep: bool,
) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """x [B, T, width] through the last so many layers, and if asked for what each was given [layers, B, T, width]; None
    where torch has to do it.

    Keys and values are kept in the stores (layers of one SlotCache), and a mask for each layer is added, as Block says
    it.
    """
    (batch, tokens, width), mask = x.shape, masks[0]
    place = _place(stores, rotation, masks, batch, tokens, layers.heads)
    if place is None:
        return None
    sizes, slots = place
    cos, sin = rotation.cos.contiguous(), rotation.sin.contiguous()
    x, rows, count = x.clone(memory_format=torch.contiguous_format), batch * tokens, len(stores)
    first = ctypes.byref(layers.layers, (len(layers.layers) - count) * ctypes.sizeof(Block))  # the last so many
    states = x.new_empty((count, *x.shape)) if keep else None
    work = x.new_empty(rows * (3 * layers.width + width + 2))
    kept = [buffer.data_ptr() for store in stores for buffer in (store.keys, store.values)]
    build.compiled().stack(
        sizes,
        count,
        first,
        (ctypes.c_void_p * (2 * count))(*kept),
        None if mask is None else (ctypes.c_void_p * count)(*(one.data_ptr() for one in masks)),
        cos.data_ptr(),
        sin.data_ptr(),
        None if slots is None else slots.data_ptr(),
        x.data_ptr(),
        None if states is None else states.data_ptr(),
        work.data_ptr(),
        layers.width,
        work.data_ptr() + 4 * rows * (2 * layers.width + width),
    )
    return x, states


def fits(x: torch.Tensor, most: int = FEW) -> bool:
    """Whether `norm`, `gate` and `attend` take this tensor [B, T, ...]; on many tokens torch is as fast."""
    plain = x.device.type == "cpu" and x.dtype == torch.float32 and not x.requires_grad
    return plain and x.shape[1] <= most and x.is_contiguous() and build.compiled() is not None


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm of x [B, T, width]."""
    out, width = torch.empty_like(x), x.shape[-1]
    build.compiled().norm(x.data_ptr(), weight.data_ptr(), eps, x.numel() // width, width, out.data_ptr())
    return out


def gate(joint: torch.Tensor) -> torch.Tensor:
    """[B, T, 2 * width] -> silu(first half) * second half."""
    width = joint.shape[-1] // 2
    out = joint.new_empty((*joint.shape[:-1], width))
    build.compiled().gate(joint.data_ptr(), joint.numel() // (2 * width), width, out.data_ptr())
    return out


def attend(
    joint: torch.Tensor, rotation: Any, store: Any, heads: int, mask: torch.Tensor | None
) -> torch.Tensor | None:
    """Queries, keys and values side by side [B, T, ...] -> [B, T, heads * size]; None where torch has to do it.

    Queries and keys are turned, keys and values kept in the store (a layer of a SlotCache), and the mask [B, 1, T, S]
    added, as Block says it.
    """
    batch, tokens = joint.shape[:2]
    place = _place([store], rotation, [mask], batch, tokens, heads)
    if place is None:
        return None
    sizes, slots = place
    cos, sin = rotation.cos.contiguous(), rotation.sin.contiguous()
    out = joint.new_empty((batch, tokens, heads * store.keys.shape[-1]))
    build.compiled().attend(
        sizes,
        joint.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        None if slots is None else slots.data_ptr(),
        store.keys.data_ptr(),
        store.values.data_ptr(),
        None if mask is None else mask.data_ptr(),
        out.data_ptr(),
    )
    return out


def _place(
    stores: Sequence[Any], rotation: Any, masks: Sequence[Any], batch: int, tokens: int, heads: int
) -> tuple[Sizes, torch.Tensor | None] | None:
    """Where a call writes and reads, and the slots if they are no range; None where that is not for these functions."""
    cache, mask, row, token = getattr(stores[0], "cache", None), masks[0], 0, 0
    if cache is None or not all(store.is_initialized for store in stores):
        return None
    if cache.only is not None or cache.used > LONGEST or len(rotation.cos) != batch:  # rows that are not neighbours
        return None
    if mask is not None:
        if any(one is None or one.dtype != torch.float32 or one.stride() != mask.stride() for one in masks):
            return None
        if mask.stride(3) != 1:
            return None
        row, token = mask.stride(0) if len(mask) > 1 else 0, mask.stride(2)
    _, shared, room, size = stores[0].keys.shape
    if cache.used * heads > 4 * LONGEST * shared:  # the weights of a group of heads lie on the stack
        return None
    slots = None if cache.start is not None else cache.slots.contiguous()
    place = (room, cache.first, cache.start or 0, cache.begin, cache.used)
    return Sizes(batch, tokens, heads, shared, size, *place, row, token), slots
