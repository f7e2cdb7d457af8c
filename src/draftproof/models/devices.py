"""Where a model runs: devices and precisions by name, checked before anything is loaded."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from draftproof.errors import DraftproofError

DEVICES = ("auto", "cpu", "cuda", "cuda:1", "mps")  # as examples; torch may know others
PRECISIONS = ("float32", "bfloat16", "float16", "int8")


def choose_device(name: str | None, dtype: str = "float32") -> str:
    """The torch device of that name, checked; for None and "auto" a GPU of NVIDIA or AMD where there is one.

    >>> choose_device("cpu")
    'cpu'
    """
    import torch

    if dtype == "int8":
        if name not in (None, "auto", "cpu"):
            raise DraftproofError(
                f"int8 weights run on the CPU, not on {name!r}: choose another dtype, or leave it out"
            )
        return "cpu"
    if name is None or name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise DraftproofError(f"unknown device {name!r}: use {', '.join(DEVICES[:-1])} or {DEVICES[-1]}") from error
    count = _count(device.type)
    if not count:
        raise DraftproofError(f"device {name!r} is not available here: use auto or cpu")
    if (device.index or 0) >= count:
        last = f"{device.type}:{count - 1}"
        raise DraftproofError(f"device {name!r} is not available here: the last one is {last}")
    return "cpu" if device.type == "cpu" else name


def _count(kind: str) -> int:
    """How many devices of a kind torch can use now; kinds that hold no numbers, such as meta, count as none."""
    import torch

    if kind == "cpu":
        return 1
    try:
        module = torch.get_device_module(kind)
        return int(module.device_count()) if module.is_available() else 0
    except (RuntimeError, AttributeError):  # torch was built without it
        return 0


@cache  # said once
def note_missing_kernels(place: str) -> None:
    """Say in one line if torch does on this GPU what our kernels do on others."""
    import torch

    from draftproof import kernels

    device = torch.device(place)
    if device.type == "cuda" and (why := kernels.obstacle(device)):
        gpu = torch.cuda.get_device_name(device)
        print(f"note: torch runs every step on {gpu} ({why}): as exact, and slower", file=sys.stderr, flush=True)


def check_precision(dtype: str) -> str:
    """The name of a precision that weights can have, without torch's prefix."""
    name = str(dtype).removeprefix("torch.")
    if name not in (*PRECISIONS, "float64"):
        raise DraftproofError(f"unknown dtype {name!r}: use {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}")
    return name


def precision(dtype: str) -> Any:
    """The torch dtype in which weights are read; for int8 they are quantised afterwards."""
    import torch

    name = check_precision(dtype)
    return torch.float32 if name == "int8" else getattr(torch, name)
