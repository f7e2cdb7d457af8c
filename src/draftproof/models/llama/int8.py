"""Linear layers in 8-bit integers on the CPU: one scale per output channel for weights, one per row for activations.

Integer sums are exact in any order, every row has its own scale, and what is left in floats is added in one order
(ordered.py). So a token's result does not depend on what else is in the call nor on the processor: it is bit for bit
the same alone and beside others, here and elsewhere. That makes the quantised model a target in its own right, from
which speculative sampling is exact. (One scale for the whole activation tensor would couple the rows.) Channels that
are often large are scaled down before rounding and their weights up (SmoothQuant, Xiao et al. 2211.10438). All this is
true of networks that are rebuilt (rebuild.py); in others attention and norms are transformers' own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from draftproof.models.files.int8_file import rounded
from draftproof.models.llama import ordered
from draftproof.models.llama.backends.linear import LaidOut, as_gain, column_maxima, lay_out_int8
from draftproof.models.llama.backends.ordered_norm import OrderedNorm
from draftproof.models.llama.block import Block, lay_out
from draftproof.models.llama.network import FusedLlama
from draftproof.models.llama.rotary import Rotary

# Calibration: text of several kinds, to find large channels. It shapes the model; sampling from the model stays exact.
CALIBRATION = """The harbour was quiet. "Who is there?" she asked, and nobody answered; the lamp went out at 9:45.
1. Mix 500 g of flour with 10 g of salt. 2. Add water, wait an hour, and bake at 230 degrees.
def mean(values):
    return sum(values) / len(values)
User: What is the capital of France? Assistant: The capital of France is Paris, known for museums and food.
If 3 boxes hold 12 pens each, there are 3 * 12 = 36 pens. L'hiver est froid. Der Fluss ist breit."""


Multiply = Callable[[torch.Tensor], torch.Tensor]  # bytes [M, K] -> sums of their products with weights [M, N], exact


class Int8Linear(LaidOut):
    """A Linear layer in integers, with the RMSNorm before it if given: that only changes the scale of a row."""

    ordered = True

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
            whole, self.scale = rounded(weight if smoothing is None else weight * smoothing)
            self.multiply = product()(whole)
            self.sums = whole.sum(dim=1).float() * self.scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.native is not None:
            return self.run_native(x)
        rows, affine = ordered.to_bytes(x.reshape(-1, self.width), self.shrink, self.floor)
        out = self.multiply(rows).float() * self.scale * affine[:, :1] + affine[:, 1:] * self.sums
        if self.bias is not None:
            out = out + self.bias
        return out.view(*x.shape[:-1], -1)


def int_mm(weight: torch.Tensor) -> Multiply:
    """torch._int_mm takes signed bytes: 128 is subtracted by flipping the top bit, and added after the product."""
    transposed, missing = weight.t(), 128 * weight.sum(dim=1, dtype=torch.int32)
    return lambda rows: torch._int_mm((rows ^ 128).view(torch.int8), transposed) + missing


def slow(weight: torch.Tensor) -> Multiply:
    """Double precision, which holds every sum exactly and needs no special instructions."""
    transposed = weight.t().double()
    return lambda rows: rows.double() @ transposed


@cache
def product() -> Callable[[torch.Tensor], Multiply]:
    """The faster product if it is exact on this machine: without VNNI instructions it may saturate."""
    try:
        return int_mm if is_exact(int_mm) else slow
    except (AttributeError, RuntimeError):  # not in this build of torch
        return slow


def is_exact(way: Callable[[torch.Tensor], Multiply]) -> bool:
    """Whether a product is exact on the largest numbers, for one row and for several."""
    weight = torch.tensor([127, -127, 1], dtype=torch.int8)[:, None].repeat(1, 64)
    rows = torch.tensor([255, 0, 1, 200, 255], dtype=torch.uint8)[:, None].repeat(1, 64)
    truth = rows.long() @ weight.t().long()
    multiply = way(weight)
    return torch.equal(multiply(rows).long(), truth) and torch.equal(multiply(rows[:1]).long(), truth[:1])


@torch.no_grad()
def quantise(network: Any, calibration: Sequence[int]) -> Any:
    """The network with every Linear layer replaced, in place; embeddings, norms and attention stay float32."""
    if isinstance(network, FusedLlama):
        network.rotary = _ordered_rotary(network)
    return quantise_linears(network, _channel_maxima(network, calibration))


def quantise_linears(network: Any, largest: Mapping[nn.Module, torch.Tensor]) -> Any:
    """The same, smoothed where the `largest` value in each channel of a layer's input is known."""
    for parent in list(network.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.RMSNorm:
                setattr(parent, name, OrderedNorm.of(layer))
        for name, layer in list(parent.named_children()):
            if type(layer) is not nn.Linear:  # one that does more, such as a router, stays as it is
                continue
            smoothing = _smoothing(layer, largest[layer]) if layer in largest else None
            before = {"qkv": "norm_in", "gate_up": "norm_mlp"}.get(name) if isinstance(parent, Block) else None
            norm = None if before is None else getattr(parent, before)
            setattr(parent, name, Int8Linear(layer, smoothing, norm))
            if before is not None:
                setattr(parent, before, nn.Identity())
    lay_out(network)
    return network


def _smoothing(layer: nn.Linear, largest: torch.Tensor) -> torch.Tensor:
    """The factor of each channel: coarse, so that processors which differ in a last bit agree on it."""
    weight = column_maxima(layer.weight.detach()).double()
    factors = (largest.double().clamp_min(1e-5) / weight.clamp_min(1e-5)).sqrt()
    return (factors / factors.log().mean().exp()).bfloat16().float()


def _ordered_rotary(network: FusedLlama) -> Rotary:
    """Rotary positions whose frequencies are computed in double precision, where they are the plain ones."""
    old, rope = network.rotary, network.config.rope_parameters
    if rope["rope_type"] != "default":
        return old
    count = len(old.frequencies)
    return Rotary(torch.tensor([rope["rope_theta"] ** (-i / count) for i in range(count)]), old.scale)


def _channel_maxima(network: Any, calibration: Sequence[int]) -> dict[nn.Module, torch.Tensor]:
    """The largest absolute value in each input channel of every Linear layer, on the calibration text."""
    largest: dict[nn.Module, torch.Tensor] = {}

    def record(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        largest[layer] = inputs[0].reshape(-1, inputs[0].shape[-1]).abs().amax(dim=0)

    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    hooks = [layer.register_forward_pre_hook(record) for layer in layers]
    with _in_double(network) if isinstance(network, FusedLlama) else nullcontext():
        network(torch.tensor([calibration]))
    for hook in hooks:
        hook.remove()
    return largest


@contextmanager
def _in_double(network: FusedLlama) -> Iterator[None]:
    """Compute in double precision, one layer's weights at a time: then all processors find nearly the same."""
    changed: list[Any] = [module for module in network.modules() if type(module) in (nn.Linear, nn.RMSNorm)]
    for module in changed:
        module.forward = partial(_run_in_double, module)
    hook = network.embed.register_forward_hook(lambda module, inputs, output: output.double())
    try:
        yield
    finally:
        hook.remove()
        for module in changed:
            del module.forward


def _run_in_double(module: Any, x: torch.Tensor) -> torch.Tensor:
    weight = module.weight.double()
    if isinstance(module, nn.RMSNorm):
        return F.rms_norm(x, module.normalized_shape, weight, module.eps)
    return F.linear(x, weight, None if module.bias is None else module.bias.double())
