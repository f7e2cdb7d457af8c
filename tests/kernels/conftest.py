"""Triton's interpreter in less time: at every call of a function it looks through the whole language for builtins."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def look_once() -> Iterator[None]:
    """Which names are builtins does not change, only whether they are patched yet."""
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            from triton.language.core import is_builtin
            from triton.runtime import interpreter

            @cache
            def names(package: Any) -> list[str]:
                return [name for name, member in inspect.getmembers(package) if is_builtin(member)]

            def patch_builtin(package: Any, *rest: Any) -> None:
                for name in names(package):
                    if is_builtin(member := getattr(package, name)):
                        interpreter._patch_attr(package, name, member, *rest)

            patch.setattr(interpreter, "_patch_builtin", patch_builtin)
        yield
