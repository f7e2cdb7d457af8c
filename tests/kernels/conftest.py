"""Kernels of these tests are run by Triton's interpreter where there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def fast_interpreter() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            from tests.support import interpreter

            interpreter.hurry(patch)
        yield
