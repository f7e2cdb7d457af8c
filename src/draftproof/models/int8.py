"""Linear layers in 8-bit integers on the CPU: one scale per output channel for weights, one per row for activations.

Integer sums are exact in any order, and a row's scale is its own, so a token's result does not depend on what else is
in the call: bit for bit the same alone or beside others. That is what makes the quantised model a target of its own,
from which speculative sampling is exact. (One scale for the whole activation tensor would couple the rows.) Channels
that are often large are shrunk before rounding and their weights enlarged (SmoothQuant, Xiao et al. 2211.10438).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn

# A little of everything, to see which channels are large. The choice shapes the model; sampling from it stays exact.
CALIBRATION = """The harbour was quiet. "Who is there?" she asked, and nobody answered; the lamp went out at 9:45.
1. Mix 500 g of flour with 10 g of salt. 2. Add water, wait an hour, and bake at 230 degrees.
def mean(values):
    return sum(values) / len(values)
User: What is the capital of France? Assistant: The capital of France is Paris, known for museums and food.
If 3 boxes hold 12 pens each, there are 3 * 12 = 36 pens. L'hiver est froid. Der Fluss ist breit."""


MIDDLE = 128  # activations are stored as unsigned bytes around it, which is what VNNI instructions multiply

Multiply = Callable[[torch.Tensor], torch.Tensor]  # rows [M, K] of bytes -> [M, N] in float32


class Input:
    """What layers that read the same tensor share: its smoothing, and the last activation quantised."""

    def __init__(self, smoothing: torch.Tensor) -> None:
        self.shrink = 1 / smoothing
        self.source: torch.Tensor | None = None
        self.rows = torch.empty(0, dtype=torch.uint8)
        self.scale = torch.empty(0)

    def quantise(self, x: torch.Tensor) -> None:
        if self.source is x:
            return
        flat = x.reshape(-1, x.shape[-1]) * self.shrink
        self.scale = flat.abs().amax(dim=-1, keepdim=True).clamp_min_(1e-30).div_(127)  # zero stays zero
        # the conversion cuts, so adding a half rounds; sums and products apart, for a fused one may round differently
        self.rows = flat.div_(self.scale).add_(MIDDLE + 0.5).to(torch.uint8)
        self.source = x


class Int8Linear(nn.Module):
    """Stands in for a Linear layer."""

    bias: torch.Tensor | None

    def __init__(self, linear: nn.Linear, shared: Input) -> None:
        super().__init__()
        weight = linear.weight.detach().float() / shared.shrink
        scale = weight.abs().amax(dim=1).clamp_min(1e-30) / 127
        self.shared = shared
        self.out_features = linear.out_features
        self.multiply = product()(torch.round(weight / scale[:, None]).to(torch.int8), scale)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().float(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.shared.quantise(x)
        out = self.multiply(self.shared.rows).mul_(self.shared.scale)
        if self.bias is not None:
            out += self.bias
        return out.view(*x.shape[:-1], self.out_features)


def onednn(weight: torch.Tensor, scale: torch.Tensor) -> Multiply:
    """Weights [N, K] laid out once: on 2 to 32 rows about twice as fast as `int_mm`."""
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    zero = torch.zeros(len(weight), dtype=torch.int32)
    call = torch.ops.onednn.qlinear_pointwise.default
    return lambda rows: call(rows, 1.0, MIDDLE, packed, scale, zero, None, 1.0, 0, torch.float32, "none", [], "")


def int_mm(weight: torch.Tensor, scale: torch.Tensor) -> Multiply:
    turned = weight.t()
    return lambda rows: torch._int_mm((rows ^ MIDDLE).view(torch.int8), turned) * scale  # flips the top bit: - MIDDLE


def slow(weight: torch.Tensor, scale: torch.Tensor) -> Multiply:
    """Double precision holds every sum; no special instructions needed."""
    turned = weight.t().double()
    return lambda rows: (rows.double().sub_(MIDDLE) @ turned).float() * scale


@cache
def product() -> Callable[[torch.Tensor, torch.Tensor], Multiply]:
    """The fastest product that is exact here: on processors without VNNI instructions some saturate."""
    for way in (onednn, int_mm):
        try:
            if is_exact(way):
                return way
        except (AttributeError, RuntimeError):  # not in this build of torch
            continue
    return slow


def is_exact(way: Callable[[torch.Tensor, torch.Tensor], Multiply]) -> bool:
    """On the largest numbers there are, for one row and for several."""
    weight = torch.tensor([127, -127, 1], dtype=torch.int8)[:, None].repeat(1, 64)
    rows = torch.tensor([255, 1, 128, 200, 255], dtype=torch.uint8)[:, None].repeat(1, 64)
    scale = torch.tensor([1.0, 0.3, 0.7])
    truth = ((rows.long() - MIDDLE) @ weight.t().long()).float() * scale
    multiply = way(weight, scale)
    return torch.equal(multiply(rows), truth) and torch.equal(multiply(rows[:1]), truth[:1])


@torch.no_grad()
def quantise(network: Any, calibration: Sequence[int]) -> Any:
    """The network with every Linear layer replaced, in place; embeddings, norms and attention stay float32."""
    groups = _groups(network, calibration)
    for layers, largest in groups:
        weight = torch.stack([layer.weight.abs().amax(dim=0) for _, _, layer in layers]).amax(dim=0)
        smoothing = (largest.clamp_min(1e-5) / weight.clamp_min(1e-5)).sqrt()
        shared = Input(smoothing / smoothing.log().mean().exp())
        for parent, name, layer in layers:
            setattr(parent, name, Int8Linear(layer, shared))
    return network


def _groups(network: Any, calibration: Sequence[int]) -> list[tuple[list[tuple[nn.Module, str, nn.Linear]], Any]]:
    """Linear layers that read the same tensor, and the largest value in each of its channels on a text."""
    seen: dict[int, tuple[list[tuple[nn.Module, str, nn.Linear]], torch.Tensor]] = {}
    sources = []  # kept until the end, so that no two tensors share an id

    def watch(parent: nn.Module, name: str) -> Any:
        def hook(layer: nn.Linear, inputs: tuple[torch.Tensor, ...]) -> None:
            (x,) = inputs
            sources.append(x)
            layers, _ = seen.setdefault(id(x), ([], x.reshape(-1, x.shape[-1]).abs().amax(dim=0)))
            layers.append((parent, name, layer))

        return hook

    hooks = [
        child.register_forward_pre_hook(watch(parent, name))
        for parent in network.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear)
    ]
    network(torch.tensor([calibration]))
    for hook in hooks:
        hook.remove()
    return list(seen.values())
