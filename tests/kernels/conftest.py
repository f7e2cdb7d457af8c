"""Speed up Triton's interpreter: look up the language's builtins once, not at every call, and sort with NumPy."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def faster_interpreter() -> Iterator[None]:
    """Which members are builtins does not change, only whether they are patched yet; tl.sort takes dozens of steps."""
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            from triton import language as tl
            from triton.language.core import is_builtin
            from triton.runtime import interpreter

            @cache
            def names(package: Any) -> list[str]:
                return [name for name, member in inspect.getmembers(package) if is_builtin(member)]

            def patch_builtin(package: Any, *rest: Any) -> None:
                for name in names(package):
                    if is_builtin(member := getattr(package, name)):
                        interpreter._patch_attr(package, name, member, *rest)

            def sort(x: Any, descending: bool) -> Any:
                data = np.sort(x.handle.data)[:: -1 if descending else 1].copy()
                return tl.tensor(interpreter.TensorHandle(data, x.handle.dtype), x.type)

            patch.setattr(interpreter, "_patch_builtin", patch_builtin)
            patch.setattr(tl, "sort", sort)
        yield
