"""The decoder layer of the Llama family, with fused products: queries, keys and values in one, gate and up in another.

A call of few tokens then spends its time on reading weights and not on starting operations. Rebuilt targets and trained
heads are made of these layers, and training runs them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from draftproof.models.llama.backends import choose, native_stack
from draftproof.models.llama.call import LayerCall
from draftproof.models.llama.masks import FULL
from draftproof.models.llama.rotary import Rotation


class LayerShape(NamedTuple):
    """Sizes of a layer."""

    width: int
    heads: int  # of queries
    shared: int  # heads of keys and values, each shared by a group of query heads
    size: int  # of a head
    inner: int  # width of the MLP
    eps: float = 1e-5
    bias: bool = False  # of queries, keys and values


class Block(nn.Module):
    """The weights of one layer, x + attention(norm(x)), then + mlp(norm(.)), and its parts in torch."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.shape = shape
        width, size = shape.width, shape.size
        self.norm_in = nn.RMSNorm(width, shape.eps)
        self.qkv = nn.Linear(width, (shape.heads + 2 * shape.shared) * size, bias=shape.bias)
        self.out = nn.Linear(shape.heads * size, width, bias=False)
        self.norm_mlp = nn.RMSNorm(width, shape.eps)
        self.gate_up = nn.Linear(width, 2 * shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, width, bias=False)

    @property
    def linears(self) -> tuple[nn.Module, ...]:
        return self.qkv, self.out, self.gate_up, self.down

    def project(self, x: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rotated queries, rotated keys, and values [B, heads, T, size] of x [B, T, width]."""
        return self.split(self.qkv(self.norm_in(x)), rotation)

    def split(self, qkv: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The same from the product [B, T, ...]."""
        shape = self.shape
        qkv = qkv.view(*qkv.shape[:2], -1, shape.size).transpose(1, 2)
        rotated, v = rotation.rotate(qkv[:, : -shape.shared]), qkv[:, -shape.shared :]
        return rotated[:, : shape.heads], rotated[:, shape.heads :], v

    def finish(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The layer's output, from its input x [B, T, width] and the attention output [B, T, heads * size]."""
        x = x + self.out(attended)
        gate, up = self.gate_up(self.norm_mlp(x)).chunk(2, dim=-1)
        down: torch.Tensor = self.down(F.silu(gate) * up)
        return x + down


class Blocks(nn.ModuleList):
    """Consecutive layers of one shape."""

    stack: Any = None  # the same for C (native.Stack), once the weights stay as they are

    def __init__(self, blocks: Iterable[Block], kinds: Sequence[str] = ()) -> None:
        """`kinds`: of attention, one for each layer; full attention if none are given."""
        super().__init__(blocks)
        self.kinds = tuple(kinds) or (FULL,) * len(self)
        self.shape: Any = self[0].shape if len(self) else None

    def lay_out(self) -> None:
        self.stack = native_stack.lay_out(self)

    def forward(
        self, x: torch.Tensor, call: LayerCall, first: int = 0, keep: Sequence[int] = ()
    ) -> tuple[torch.Tensor, Any]:
        """x [B, T, width] through the layers from `first` on, and what those in `keep`, counted from there, were given:
        a list or dict."""
        return choose(self, x, call, first, keep).run(self, x, call, first, keep)

    def layers(self, call: LayerCall, first: int) -> list[tuple[Any, Any, Any]]:
        """Block, mask and KV cache layer (or None) of each layer from `first` on."""
        cache = call.cache or [None] * len(self)
        every = zip(self, self.kinds, cache, strict=True)
        return [(block, call.masks[kind], layer) for block, kind, layer in every][first:]


def lay_out(network: nn.Module) -> None:
    """Lay out for C all layers of a network that can be, once its weights stay as they are."""
    for module in network.modules():
        if isinstance(module, Blocks):
            module.lay_out()
