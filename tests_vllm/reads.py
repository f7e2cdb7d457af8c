"""Fail where a step reads a number of the device, for which the host would wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

READS = {
    "item", "tolist", "numpy", "cpu", "nonzero", "argwhere", "masked_select", "unique", "equal", "allclose",
    "__bool__", "__int__", "__float__", "__index__",
}  # fmt: skip


class NoReads(TorchFunctionMode):
    """Inside of it tensors stay on the device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        assert name not in READS, f"{name} waits for the device"
        if name in ("__getitem__", "__setitem__"):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            masks = [each for each in index if isinstance(each, torch.Tensor) and each.dtype == torch.bool]
            assert not masks or name == "__setitem__", "the size of what a mask selects is known to the device alone"
        return func(*args, **(kwargs or {}))


def barred(patch: pytest.MonkeyPatch, owner: Any, name: str, calls: list[str]) -> None:
    """Let a function read nothing; what it calls that is `allowed` may."""
    original = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        with NoReads():
            return original(*arguments, **named)

    patch.setattr(owner, name, call)


def allowed(patch: pytest.MonkeyPatch, owner: Any, *names: str) -> None:
    """Let functions read what they like: those of vLLM, and verification, which has a test of its own."""

    def free(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            with torch._C.DisableTorchFunction():
                return original(*arguments, **named)

        return call

    for name in names:
        patch.setattr(owner, name, free(getattr(owner, name)))
