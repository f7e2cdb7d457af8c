"""What every launcher needs: whether launches may overlap, the current device, and sizes of grids and blocks."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch


def may_overlap(device: torch.device) -> bool:
    """Whether a kernel may start before the previous one has ended (programmatic dependent launch)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def current(device: torch.device) -> Any:
    """Make a device the current one, on which Triton launches; on the CPU its interpreter needs none."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def cdiv(count: int, size: int) -> int:
    """How many blocks of a size hold `count`. triton.cdiv, which also works in kernels, takes 9 microseconds."""
    return -(-count // size)


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is not below a positive number."""
    return 1 << (number - 1).bit_length()
