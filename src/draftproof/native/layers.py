"""Layers of the Llama family as C functions.

In the middle of a call every torch operation costs ten microseconds or more, whatever it does, and a layer has dozens.
Here all layers of a call are one function, which reads their weights as fast as memory delivers them. A row's numbers
are summed in the same order whatever stands beside it, so its result is the same to the last bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.nn import RMSNorm
from torch.nn import functional as F  # noqa: N812

from draftproof.native import build
from draftproof.native.build import MaskStruct, Sizes

FEW = 32  # tokens of a row in one call of a single function; on more torch is as fast
GROUP = 32  # columns of weights that lie together


class LinearStruct(ctypes.Structure):
    """A linear layer and the norm before it, as linear.c has them."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weights", "scale", "sums", "bias", "gain")),
        ("floor", ctypes.c_float),
        *((name, ctypes.c_long) for name in ("width", "outputs")),
    )


class NativeLinear(NamedTuple):
    """The weights of a linear layer as the C functions read them."""

    struct: LinearStruct
    weights: torch.Tensor  # [N / 32, K / 4, 32, 4] int8 with K padded to a multiple of 8, or [N / 32, K, 32] float32
    others: tuple[torch.Tensor | None, ...]  # scale, sums, bias, gain; the first three padded to a multiple of 32

    @property
    def dense(self) -> torch.Tensor:
        """[N, K], of weights in float32."""
        return self.weights.transpose(1, 2).reshape(-1, self.struct.width)[: self.struct.outputs]


def lay_out_int8(
    weight: torch.Tensor,
    smoothing: torch.Tensor | None,
    bias: torch.Tensor | None,
    gain: torch.Tensor | None = None,
    floor: float | None = None,
) -> NativeLinear | None:
    """Weights [N, K], times smoothing [K] if given, as integers; None where the C function is not available.

    They are rounded as by `models.files.int8_file.rounded`. Each row of x [..., K] is multiplied by the gain [K] and,
    with a floor, divided by the root of floor^2 plus the sum of its squares: with a suitable gain, RMSNorm (`as_gain`).
    Then it is rounded to bytes.
    """
    outputs, width = weight.shape
    if build.compiled() is None:
        return None
    weight = weight.float().contiguous()
    smoothing = None if smoothing is None else smoothing.float().contiguous()
    rows, deep = outputs + -outputs % GROUP, width + -width % 8
    whole = torch.empty((rows // GROUP, deep // 4, GROUP, 4), dtype=torch.int8)
    scale, sums = torch.empty(rows, dtype=torch.float32), torch.empty(rows, dtype=torch.int32)
    build.compiled().lay_out_bytes(
        weight.data_ptr(),
        None if smoothing is None else smoothing.data_ptr(),
        *(outputs, width, deep),
        *(tensor.data_ptr() for tensor in (whole, scale, sums)),
    )
    padded = None if bias is None else F.pad(bias, (0, rows - outputs))
    return _linear(whole, (scale, sums, padded, gain), floor, width, outputs)


def lay_out_float32(weight: torch.Tensor, bias: torch.Tensor | None) -> NativeLinear | None:
    """Weights [N, K] in float32; None where the C function is not available."""
    outputs, width = weight.shape
    if width % 2 or weight.dtype != torch.float32 or build.compiled() is None or not build.compiled().has_floats():
        return None
    weight = weight.contiguous()
    whole = torch.empty((-(-outputs // GROUP), width, GROUP), dtype=torch.float32)
    build.compiled().lay_out_floats(weight.data_ptr(), outputs, width, whole.data_ptr())
    return _linear(whole, (None, None, bias, None), None, width, outputs)


def column_maxima(weight: torch.Tensor) -> torch.Tensor:
    """The largest absolute value in each column of weights [N, K]."""
    if build.compiled() is None or weight.dtype != torch.float32 or weight.device.type != "cpu":
        return weight.abs().amax(dim=0)
    weight, most = weight.contiguous(), torch.empty(weight.shape[1], dtype=torch.float32)
    build.compiled().column_maxima(weight.data_ptr(), *weight.shape, most.data_ptr())
    return most


def _linear(
    weights: torch.Tensor, others: tuple[torch.Tensor | None, ...], floor: float | None, width: int, outputs: int
) -> NativeLinear:
    others = tuple(None if one is None else one.contiguous() for one in others)
    pointers = (None if one is None else one.data_ptr() for one in (weights, *others))
    return NativeLinear(LinearStruct(*pointers, -1.0 if floor is None else floor, width, outputs), weights, others)


def linear(x: torch.Tensor, layer: NativeLinear) -> torch.Tensor:
    """x [..., K] times the weights: [..., N]."""
    x, struct = x.contiguous(), layer.struct
    count = x.numel() // struct.width
    out = x.new_empty((*x.shape[:-1], struct.outputs))  # not torch.empty, which follows torch's default dtype
    scratch = x.new_empty(count * (struct.width + 2))
    build.compiled().linear(ctypes.byref(struct), x.data_ptr(), count, scratch.data_ptr(), out.data_ptr())
    return out


LINEARS = ("qkv", "out", "gate_up", "down")  # of a layer


class LayerStruct(ctypes.Structure):
    """A layer of the Llama family, as layers.c has it."""

    _fields_ = tuple((name, LinearStruct) for name in LINEARS)


class Stack(NamedTuple):
    """Consecutive layers, and what keeps their weights in memory."""

    layers: Any  # array of LayerStruct
    kept: list[Any]
    width: int  # of the widest thing a token becomes


def stack(layers: Sequence[Sequence[tuple[NativeLinear, RMSNorm | None]]]) -> Stack:
    """Layers of four linears each, with the norm before each that is not part of it yet."""
    kept: list[Any] = []
    table, widest = (LayerStruct * len(layers))(), 0
    for entry, linears in zip(table, layers, strict=True):
        for name, (layer, norm) in zip(LINEARS, linears, strict=True):
            struct = LinearStruct.from_buffer_copy(layer.struct)
            if norm is not None:
                kept.append(absorb(norm, struct))
            setattr(entry, name, struct)
            kept.append(layer)
            widest = max(widest, struct.outputs, struct.width)
    return Stack(table, kept, widest)


def absorb(norm: RMSNorm, struct: LinearStruct) -> torch.Tensor:
    """Make the norm before a linear layer part of it; returns its gain, which must be kept in memory."""
    gain, struct.floor = as_gain(norm)
    struct.gain = gain.data_ptr()
    return gain


def as_gain(norm: RMSNorm) -> tuple[torch.Tensor, float]:
    """The gain [K] and the floor by which `lay_out_int8` computes this norm."""
    gain: torch.Tensor = norm.weight.detach()
    width = len(gain)
    return gain * width**0.5, (width * (norm.eps or 0.0)) ** 0.5


class Attention(NamedTuple):
    """Where a call writes and reads the cache, and its rotary angles."""

    sizes: Sizes
    cos: torch.Tensor  # [B, 1, T, size], contiguous
    sin: torch.Tensor
    slots: torch.Tensor | None  # [B, T] int64, contiguous; None where they are consecutive from `sizes.start` on


def mask(added: torch.Tensor | None = None) -> MaskStruct:
    """A mask [B, 1, T, S] in float32, whose strides are in the call's Sizes; without one, tokens see all slots."""
    return MaskStruct(None if added is None else added.data_ptr(), -1)


def causal(window: int | None = None) -> MaskStruct:
    """Tokens see the slots from 1 to their own, or the last `window` of them; padding in slot 0 sees itself."""
    return MaskStruct(None, window or 0)


def run_stack(
    layers: Stack,
    x: torch.Tensor,
    attention: Attention,
    entries: Sequence[tuple[torch.Tensor, torch.Tensor]],
    masks: Sequence[MaskStruct],
    keep: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """x [B, T, width] through the last so many layers, and the inputs of those to keep [len(keep), B, T, width].

    entries   keys and values [rows, kv_heads, slots, size] of each of these layers
    masks     one for each (`mask`)
    """
    (batch, tokens, width), (sizes, cos, sin, slots) = x.shape, attention
    x, count = x.clone(memory_format=torch.contiguous_format), len(entries)
    first = ctypes.byref(layers.layers, (len(layers.layers) - count) * ctypes.sizeof(LayerStruct))
    states = x.new_empty((len(keep), *x.shape)) if keep else None
    work = workspace(x, batch * tokens, layers.width, width)
    build.compiled().stack(
        sizes,
        count,
        first,
        addresses(entries),
        (MaskStruct * count)(*masks),
        cos.data_ptr(),
        sin.data_ptr(),
        None if slots is None else slots.data_ptr(),
        x.data_ptr(),
        None if states is None else states.data_ptr(),
        places(tuple(keep), count),
        *parts(work, layers.width, width),
    )
    return x, states


def addresses(entries: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """Of keys and values of each layer, for C."""
    return (ctypes.c_void_p * (2 * len(entries)))(*(buffer.data_ptr() for pair in entries for buffer in pair))


def workspace(like: torch.Tensor, tokens: int, widest: int, width: int) -> torch.Tensor:
    """Memory for what so many tokens become in layers of this width, at most `widest` numbers each."""
    return like.new_empty((tokens, 3 * widest + width + 2))


def parts(work: torch.Tensor, widest: int, width: int) -> tuple[int, int, int]:
    """A workspace as C takes it: what tokens become, how wide that may be, and what a linear layer reads."""
    start = work.data_ptr()
    return start, widest, start + 4 * len(work) * (2 * widest + width)


@lru_cache
def places(chosen: tuple[int, ...], count: int) -> Any:
    """Which of the chosen layers each of `count` is, for C; -1 for none of them."""
    return (ctypes.c_long * count)(*(chosen.index(layer) if layer in chosen else -1 for layer in range(count)))


def fits(x: torch.Tensor, most: int | None = FEW) -> bool:
    """Whether `norm`, `gate` and `attend` take this tensor [B, T, ...]; on more than `most` tokens torch is as fast."""
    plain = x.device.type == "cpu" and x.dtype == torch.float32 and not x.requires_grad
    short = most is None or x.shape[1] <= most
    return plain and short and x.is_contiguous() and build.compiled() is not None


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm of x [B, T, width]."""
    out, width = torch.empty_like(x), x.shape[-1]
    build.compiled().norm(x.data_ptr(), weight.data_ptr(), eps, x.numel() // width, width, out.data_ptr())
    return out


def gate(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of [B, T, 2 * width]."""
    width = gate_up.shape[-1] // 2
    out = gate_up.new_empty((*gate_up.shape[:-1], width))
    build.compiled().gate(gate_up.data_ptr(), gate_up.numel() // (2 * width), width, out.data_ptr())
    return out


def attend(
    qkv: torch.Tensor,
    attention: Attention,
    entries: tuple[torch.Tensor, torch.Tensor],
    mask: MaskStruct,
) -> torch.Tensor:
    """Queries, keys and values side by side [B, T, ...] -> attention output [B, T, heads * size].

    Queries and keys are rotated in place, keys and values written into the entries [rows, kv_heads, slots, size].
    """
    (batch, tokens, _), (sizes, cos, sin, slots), (keys, values) = qkv.shape, attention, entries
    out = qkv.new_empty((batch, tokens, sizes.heads * sizes.size))
    build.compiled().attend(
        sizes,
        qkv.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        None if slots is None else slots.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        mask,
        out.data_ptr(),
    )
    return out
