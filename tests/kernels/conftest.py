"""Kernels of these tests are run by Triton's interpreter where there is no GPU."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def interpreted(fast_interpreter: None) -> None:
    """Every test of this folder."""
