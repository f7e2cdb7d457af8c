"""Linear layers in 8-bit integers on the CPU: one scale per output channel for weights, one per row for activations.

Integer sums are exact in any order and every row has its own scale, so a token's result does not depend on what else is
in the call: it is bit for bit the same alone and beside others. That makes the quantised model a target in its own
right, from which speculative sampling is exact. (One scale for the whole activation tensor would couple the rows.)
Channels that are often large are scaled down before rounding and their weights up (SmoothQuant, Xiao et al.
2211.10438).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from draftproof.models.files.int8_file import rounded
from draftproof.models.llama.backends.linear import LaidOut, as_gain, column_maxima, lay_out_int8
from draftproof.models.llama.block import Block, lay_out

# Calibration: text of several kinds, to find large channels. It shapes the model; sampling from the model stays exact.
CALIBRATION = """The harbour was quiet. "Who is there?" she asked, and nobody answered; the lamp went out at 9:45.
1. Mix 500 g of flour with 10 g of salt. 2. Add water, wait an hour, and bake at 230 degrees.
def mean(values):
    return sum(values) / len(values)
User: What is the capital of France? Assistant: The capital of France is Paris, known for museums and food.
If 3 boxes hold 12 pens each, there are 3 * 12 = 36 pens. L'hiver est froid. Der Fluss ist breit."""


Multiply = Callable[[torch.Tensor], torch.Tensor]  # bytes [M, K] -> their products with the weights [M, N], in float32


class Int8Linear(LaidOut):
    """A Linear layer in integers, with the RMSNorm before it if given: that only changes the scale of a row."""

    def __init__(
        self, linear: nn.Linear, smoothing: torch.Tensor | None = None, norm: nn.RMSNorm | None = None
    ) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        self.bias = None if linear.bias is None else linear.bias.detach().float()
        self.width = linear.in_features
        self.shrink = None if smoothing is None else 1 / smoothing
        self.floor: float | None = None
        if norm is not None:
            gain, self.floor = as_gain(norm)
            self.shrink = gain if self.shrink is None else gain * self.shrink
        self.native = lay_out_int8(weight, smoothing, self.bias, self.shrink, self.floor)
        if self.native is None:
            whole, scale = rounded(weight if smoothing is None else weight * smoothing)
            self.multiply = product()(whole, scale)
            self.sums = whole.sum(dim=1).float() * scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.native is not None:
            return self.run_native(x)
        flat = x.reshape(-1, self.width)
        # bytes of each row, followed by their scale and zero point as two floats: [M, K + 8]
        rows = torch.ops.quantized.embedding_bag_byte_prepack(flat if self.shrink is None else flat * self.shrink)
        affine = rows[:, self.width :].clone().view(torch.float32)
        # bytes cannot be NaN, so a row with NaN gets it from its norm or its largest value
        if self.floor is None:
            affine += 0 * flat.amax(dim=-1, keepdim=True)
        else:
            affine /= torch.linalg.vector_norm(flat, dim=-1, keepdim=True).square_().add_(self.floor**2).sqrt_()
        out = self.multiply(rows[:, : self.width]).mul_(affine[:, :1]).addcmul_(affine[:, 1:], self.sums)
        if self.bias is not None:
            out += self.bias
        return out.view(*x.shape[:-1], -1)


def onednn(weight: torch.Tensor, scale: torch.Tensor) -> Multiply:
    """Weights [N, K] laid out once: on 2 to 32 rows about twice as fast as `int_mm`."""
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    zero = torch.zeros(len(weight), dtype=torch.int32)
    call = torch.ops.onednn.qlinear_pointwise.default
    least = 4  # rows; fewer take longer

    def multiply(rows: torch.Tensor) -> torch.Tensor:
        count = len(rows)
        rows = rows.contiguous() if count >= least else F.pad(rows, (0, 0, 0, least - count))
        out = call(rows, 1.0, 0, packed, scale, zero, None, 1.0, 0, torch.float32, "none", [], "")
        return out[:count]  # type: ignore[no-any-return]

    return multiply


def int_mm(weight: torch.Tensor, scale: torch.Tensor) -> Multiply:
    """torch._int_mm takes signed bytes: 128 is subtracted by flipping the top bit, and added after the product."""
    transposed, missing = weight.t(), 128 * weight.sum(dim=1, dtype=torch.int32)
    return lambda rows: (torch._int_mm((rows ^ 128).view(torch.int8), transposed) + missing) * scale


def slow(weight: torch.Tensor, scale: torch.Tensor) -> Multiply:
    """Double precision, which holds every sum exactly and needs no special instructions."""
    transposed = weight.t().double()
    return lambda rows: (rows.double() @ transposed).float() * scale


@cache
def product() -> Callable[[torch.Tensor, torch.Tensor], Multiply]:
    """The fastest product that is exact on this machine: without VNNI instructions some saturate."""
    for way in (onednn, int_mm):
        try:
            if is_exact(way):
                return way
        except (AttributeError, RuntimeError):  # not in this build of torch
            continue
    return slow


def is_exact(way: Callable[[torch.Tensor, torch.Tensor], Multiply]) -> bool:
    """Whether a product is exact on the largest numbers, for one row and for several."""
    weight = torch.tensor([127, -127, 1], dtype=torch.int8)[:, None].repeat(1, 64)
    rows = torch.tensor([255, 0, 1, 200, 255], dtype=torch.uint8)[:, None].repeat(1, 64)
    scale = torch.tensor([1.0, 0.3, 0.7])
    truth = (rows.long() @ weight.t().long()).float() * scale
    multiply = way(weight, scale)
    return torch.equal(multiply(rows), truth) and torch.equal(multiply(rows[:1]), truth[:1])


@torch.no_grad()
def quantise(network: Any, calibration: Sequence[int]) -> Any:
    """The network with every Linear layer replaced, in place; embeddings, norms and attention stay float32."""
    return quantise_linears(network, _channel_maxima(network, calibration))


def quantise_linears(network: Any, largest: Mapping[nn.Module, torch.Tensor]) -> Any:
    """The same, smoothed where the `largest` value in each channel of a layer's input is known."""
    for parent in list(network.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is not nn.Linear:  # one that does more, such as a router, stays as it is
                continue
            smoothing = None
            if layer in largest:
                weight = column_maxima(layer.weight.detach())
                smoothing = (largest[layer].clamp_min(1e-5) / weight.clamp_min(1e-5)).sqrt()
                smoothing /= smoothing.log().mean().exp()
            before = {"qkv": "norm_in", "gate_up": "norm_mlp"}.get(name) if isinstance(parent, Block) else None
            norm = None if before is None else getattr(parent, before)
            setattr(parent, name, Int8Linear(layer, smoothing, norm))
            if before is not None:
                setattr(parent, before, nn.Identity())
    lay_out(network)
    return network


def _channel_maxima(network: Any, calibration: Sequence[int]) -> dict[nn.Module, torch.Tensor]:
    """The largest absolute value in each input channel of every Linear layer, on the calibration text."""
    largest: dict[nn.Module, torch.Tensor] = {}

    def record(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        largest[layer] = inputs[0].reshape(-1, inputs[0].shape[-1]).abs().amax(dim=0)

    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    hooks = [layer.register_forward_pre_hook(record) for layer in layers]
    network(torch.tensor([calibration]))
    for hook in hooks:
        hook.remove()
    return largest
