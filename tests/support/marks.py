"""Marks that several tests share."""

from __future__ import annotations

import pytest

# Triton's interpreter computes with NumPy, which warns of the infinities and NaNs that a device computes with in
# silence: in the interpreter's own lines, and where it sums memory that is not used.
INTERPRETED = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning:triton.runtime.interpreter", "ignore:invalid value encountered in reduce:RuntimeWarning"
)
