"""Linear layers whose weights are laid out for calls of few rows: by the C functions, or by oneDNN."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from draftproof.native import NativeLinear, as_gain, build, column_maxima, lay_out_float32, lay_out_int8, linear

__all__ = ["LaidOut", "PackedLinear", "as_gain", "can_pack", "column_maxima", "in_c", "laid_out", "lay_out_int8"]


class LaidOut(nn.Module):
    """A linear layer whose weights may be laid out for C."""

    native: NativeLinear | None  # None where this machine has no C function for them
    ordered = False  # whether it computes the same bits everywhere, and the layers around it must too

    def run_native(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in] -> [..., out]."""
        assert self.native is not None
        return linear(x, self.native)


def laid_out(module: nn.Module) -> NativeLinear | None:
    """The weights of a linear layer as the C functions read them, or None where they are not laid out so."""
    return module.native if isinstance(module, LaidOut) else None


class PackedLinear(LaidOut):
    """A linear layer in float32 for calls of few rows."""

    LEAST = 4  # rows; fewer are padded, because oneDNN is slower on them than on four

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
        self.bias = bias
        self.native = lay_out_float32(weight, bias)
        self.packed: Any = None if self.native else torch.ops.mkldnn._reorder_linear_weight(weight, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.native is not None:
            return self.run_native(x)
        rows = x.reshape(-1, x.shape[-1])
        count = len(rows)
        if count < self.LEAST:
            rows = F.pad(rows, (0, 0, 0, self.LEAST - count))
        out = torch.ops.mkldnn._linear_pointwise.default(rows, self.packed, self.bias, "none", [], "")
        return out[:count].view(*x.shape[:-1], -1)  # type: ignore[no-any-return]

    @property
    def weight(self) -> torch.Tensor:
        """[out, in], unpacked anew each time."""
        return self.packed.to_dense() if self.native is None else self.native.dense


def in_c() -> bool:
    """Whether this machine has the C functions; without them layers in integers are slow."""
    return build.compiled() is not None


def can_pack() -> bool:
    """Whether this machine has a way to lay float32 weights out."""
    return bool(torch._C._has_mkldnn) or in_c()
