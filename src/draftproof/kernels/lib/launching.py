"""What every launcher asks of the device: whether launches may overlap, and which device is current."""

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
