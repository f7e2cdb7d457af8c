"""The layer of the Llama family, with few and large products: what the lean target and the trained head are made of.

Queries, keys and values come from one product, gate and up from another, so a call of few tokens spends its time on
reading weights and not on starting operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from draftproof import native
from draftproof.models.llama import cuda
from draftproof.models.static import packing as texts
from draftproof.models.static.packing import Texts

# [B, 1, T, S] additive or boolean; its rule, where kernels are to do the call; None where every query sees all
Mask: TypeAlias = torch.Tensor | cuda.Rule | Texts | None


class Shape(NamedTuple):
    """Sizes of a layer."""

    width: int
    heads: int
    shared: int  # heads of keys and values
    size: int  # of a head
    inner: int
    eps: float = 1e-5
    bias: bool = False  # of queries, keys and values


class Store(Protocol):
    """Where a layer keeps keys and values: takes the new ones, returns all that may be attended to."""

    def update(self, keys: torch.Tensor, values: torch.Tensor, /) -> tuple[torch.Tensor, torch.Tensor]: ...


class Rotation(NamedTuple):
    """Angles of rotary positions as cosine and sine [B, 1, T, size]; the first half of the sines is negated."""

    cos: torch.Tensor
    sin: torch.Tensor

    @staticmethod
    def of(positions: torch.Tensor, frequencies: torch.Tensor, scale: float = 1.0) -> Rotation:
        """positions [B, T], frequencies [size / 2]."""
        angles = positions[:, None, :, None].float() * frequencies
        cos, sin = angles.cos() * scale, angles.sin() * scale
        return Rotation(torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1))

    def to(self, dtype: torch.dtype) -> Rotation:
        return Rotation(self.cos.to(dtype), self.sin.to(dtype))

    def turn(self, x: torch.Tensor) -> torch.Tensor:
        """x [B, heads, T, size]."""
        swapped = x.roll(x.shape[-1] // 2, dims=-1)
        return torch.addcmul(x * self.cos.to(x.dtype), swapped, self.sin.to(x.dtype))


def frequencies(size: int, theta: float = 10000.0) -> torch.Tensor:
    """Of plain rotary positions, [size / 2]."""
    return 1.0 / theta ** (torch.arange(0, size, 2).float() / size)


class Block(nn.Module):
    """x + attention(norm(x)), then + mlp(norm(.))."""

    def __init__(self, shape: Shape) -> None:
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
    def linears(self) -> tuple[nn.Linear, ...]:
        return self.qkv, self.out, self.gate_up, self.down

    def forward(self, x: torch.Tensor, rotation: Rotation, mask: Mask, store: Store | None = None) -> torch.Tensor:
        """x [B, T, width]."""
        if isinstance(mask, cuda.Rule | Texts):
            return self._launch(x, rotation, mask, store)
        few = native.fits(x)
        joint = self.qkv(normed(self.norm_in, x, few))
        few = native.fits(joint)  # under autocast it is not what x is
        seen = native.attend(joint, rotation, store, self.shape.heads, mask) if few else None
        x = x + self.out(self._attend(joint, rotation, mask, store) if seen is None else seen)
        joint = self.gate_up(normed(self.norm_mlp, x, native.fits(x)))
        gate, up = joint.chunk(2, dim=-1)
        down: torch.Tensor = self.down(native.gate(joint) if few else F.silu(gate) * up)
        return x + down

    def _launch(
        self, x: torch.Tensor, rotation: Rotation, rule: cuda.Rule | Texts, store: Store | None
    ) -> torch.Tensor:
        """The same in few launches, where `cuda.fits`."""
        shape = self.shape
        joint = self.qkv(cuda.norm(x, self.norm_in))
        if isinstance(rule, Texts):
            seen = texts.attend(joint, rotation, rule, store, shape.heads, shape.shared)
        else:
            seen = cuda.attend(joint, rotation, rule, store, shape.heads, shape.shared)
        x, inner = cuda.add_norm(x, self.out(seen), self.norm_mlp)
        gated = cuda.gate(self.gate_up(inner))
        x.flatten(0, 1).addmm_(gated.flatten(0, 1), self.down.weight.T)  # in place: x is ours since add_norm
        return x

    def _attend(
        self, joint: torch.Tensor, rotation: Rotation, mask: torch.Tensor | None, store: Store | None
    ) -> torch.Tensor:
        shape = self.shape
        joint = joint.view(*joint.shape[:2], -1, shape.size).transpose(1, 2)
        turned, v = rotation.turn(joint[:, : -shape.shared]), joint[:, -shape.shared :]
        q, k = turned[:, : shape.heads], turned[:, shape.heads :]
        if store is not None:
            k, v = store.update(k, v)
        grouped: dict[str, Any] = {"enable_gqa": True} if shape.heads != shape.shared else {}
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **grouped).transpose(1, 2).flatten(2)


class Blocks(nn.ModuleList):
    """Layers that follow one another."""

    laid_out: native.Stack | None = None  # the same in C, once the weights stay as they are

    def lay_out(self) -> None:
        self.laid_out = native.stack(self)

    def forward(
        self,
        x: torch.Tensor,
        rotation: Rotation,
        masks: Sequence[Any],
        stores: Sequence[Any],
        first: int = 0,
        keep: bool = False,
    ) -> tuple[torch.Tensor, Any]:
        """x [B, T, width] through all layers from `first` on, with a mask and a store for each layer.

        keep      say also what each layer was given
        """
        if self.laid_out is not None and native.fits(x, native.MANY):
            self._open(x, stores)
            made = native.run(self.laid_out, x, rotation, masks[first:], stores[first:], keep)
            if made is not None:
                return made
        if not keep and cuda.whole(x, self[first].shape, masks[first:], stores[first:]):
            return cuda.network(x, self[first:], rotation, masks[first], stores[first:]), []
        given = []
        for block, mask, store in zip(self[first:], masks[first:], stores[first:], strict=True):
            given.append(x)
            x = block(x, rotation, mask, store)
        return x, given

    def _open(self, x: torch.Tensor, stores: Sequence[Any]) -> None:
        """Layers of a cache make their buffers when they are first written to."""
        shape: Any = self[0].shape
        for store in stores:
            if not getattr(store, "is_initialized", True):
                one = x.new_empty((1, shape.shared, 1, shape.size))
                store.lazy_initialization(one, one)


def lay_out(network: nn.Module) -> None:
    """Make all layers of a network ready that can be, once its weights stay as they are."""
    for module in network.modules():
        if isinstance(module, Blocks):
            module.lay_out()


def normed(norm: nn.Module, x: torch.Tensor, few: bool) -> torch.Tensor:
    """norm(x), in C where x is small."""
    if few and isinstance(norm, nn.RMSNorm):
        return native.norm(x, norm.weight, norm.eps or 0.0)
    normed: torch.Tensor = norm(x)
    return normed
