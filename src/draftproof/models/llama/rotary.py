"""Rotary positions: frequencies, and the cosine and sine by which queries and keys are rotated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn


class Rotation(NamedTuple):
    """Cosine and sine of rotary positions [B, 1, T, size]; the first half of the sines is negated."""

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

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        """x [B, heads, T, size]."""
        swapped = x.roll(x.shape[-1] // 2, dims=-1)
        return torch.addcmul(x * self.cos.to(x.dtype), swapped, self.sin.to(x.dtype))

    @property
    def rows(self) -> int:
        """B."""
        return len(self.cos)


class Positions(NamedTuple):
    """Positions whose cosine and sine are still to be computed, by the backend that does the call."""

    positions: torch.Tensor  # [B, T]
    frequencies: torch.Tensor  # [size / 2]
    scale: float = 1.0

    @property
    def rows(self) -> int:
        """B."""
        return len(self.positions)

    def rotation(self, dtype: torch.dtype) -> Rotation:
        return Rotation.of(*self).to(dtype)


class Rotary(nn.Module):
    """Frequencies that follow a network to its device, but stay float32 whatever its precision."""

    def __init__(self, frequencies: torch.Tensor, scale: float = 1.0) -> None:
        super().__init__()
        self.frequencies, self.scale = frequencies.float(), scale

    def at(self, positions: torch.Tensor) -> Positions:
        """positions [B, T]."""
        return Positions(positions, self.frequencies, self.scale)

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Rotary:
        self.frequencies = self.frequencies.to(fn(self.frequencies).device)
        return self


def frequencies(size: int, theta: float = 10000.0) -> torch.Tensor:
    """Frequencies of plain rotary positions, [size / 2]."""
    # on the CPU even where a network is made on "meta", which has none of its own and would import torch's compiler
    return 1.0 / theta ** (torch.arange(0, size, 2, device="cpu").float() / size)
