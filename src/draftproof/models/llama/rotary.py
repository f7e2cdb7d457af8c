"""Rotary positions: frequencies, and the cosine and sine by which queries and keys are rotated."""

from __future__ import annotations

import math
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
        cos, sin = cos_sin(angles) if angles.device.type == "cpu" else (angles.cos(), angles.sin())
        cos, sin = cos * scale, sin * scale
        return Rotation(torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1))

    def to(self, dtype: torch.dtype) -> Rotation:
        return Rotation(self.cos.to(dtype), self.sin.to(dtype))

    def rotation(self, dtype: torch.dtype) -> Rotation:
        return self.to(dtype)

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
    look_up: Callable[[torch.Tensor], Rotation] | None = None  # a table, for callers who may wait for the host

    @property
    def rows(self) -> int:
        """B."""
        return len(self.positions)

    def rotation(self, dtype: torch.dtype) -> Rotation:
        return Rotation.of(self.positions, self.frequencies, self.scale).to(dtype)


class Rotary(nn.Module):
    """Frequencies that follow a network to its device, but stay float32 whatever its precision."""

    def __init__(self, frequencies: torch.Tensor, scale: float = 1.0) -> None:
        super().__init__()
        self.frequencies, self.scale = frequencies.float(), scale
        self._table: Rotation | None = None  # of the first positions, on a CPU

    def at(self, positions: torch.Tensor) -> Positions:
        """positions [B, T]."""
        return Positions(positions, self.frequencies, self.scale, self.look_up)

    def look_up(self, positions: torch.Tensor) -> Rotation:
        """Cosine and sine of positions [B, T] on a CPU, from a table that grows with the longest text."""
        longest = int(positions.max()) + 1 if positions.numel() else 0
        return Rotation(*(part[0, 0][positions][:, None] for part in self.table(longest)))

    def table(self, longest: int) -> Rotation:
        """Cosine and sine of at least so many positions, [1, 1, P, size]."""
        if self._table is None or self._table.cos.shape[2] < longest:
            places = torch.arange(max(256, 1 << (longest - 1).bit_length()))[None]
            self._table = Rotation.of(places, self.frequencies, self.scale)
        return self._table

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Rotary:
        self.frequencies, self._table = self.frequencies.to(fn(self.frequencies).device), None
        return self


def frequencies(size: int, theta: float = 10000.0) -> torch.Tensor:
    """Frequencies of plain rotary positions, [size / 2]."""
    # on the CPU even where a network is made on "meta", which has none of its own and would import torch's compiler
    return 1.0 / theta ** (torch.arange(0, size, 2, device="cpu").float() / size)


def cos_sin(angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of angles up to 1e5 in float32, the same on every processor; torch's differ in the last bit.

    In double precision: what is left of a multiple of pi / 2, then Taylor series, which end below 1e-16.
    """
    x = angles.double()
    quarters = torch.round(x * (2 / math.pi))
    x = x - quarters * 1.57079632673412561417 - quarters * 6.07710050650619224932e-11  # pi / 2 in two parts
    square = x * x
    sin, cos = torch.zeros_like(x), torch.zeros_like(x)
    for n in range(16, 0, -2):
        cos = (cos + 1) * square / -(n * (n - 1))
        sin = (sin + 1) * square / -(n * (n + 1))
    cos, sin = cos + 1, (sin + 1) * x
    odd, turned = quarters % 2 == 1, quarters % 4 >= 2
    cos, sin = torch.where(odd, -sin, cos), torch.where(odd, cos, sin)
    return torch.where(turned, -cos, cos).float(), torch.where(turned, -sin, sin).float()
