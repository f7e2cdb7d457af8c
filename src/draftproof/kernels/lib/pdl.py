# mypy: ignore-errors
"""Programmatic dependent launch: a kernel starts, and reads its own input, while the kernel before it still runs."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def launch_dependents(PDL: tl.constexpr):
    """Let the next kernel start while this one runs; `wait` in that kernel makes it wait for this one's results."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait(PDL: tl.constexpr):
    """Wait until the kernel before this one has ended."""
    if PDL:
        gdc_wait()


@triton.jit
def computed(number):
    """True, once `number` is computed (it must be above -1e30): a data dependency for the wait.

    `if computed(number): wait(PDL)` keeps the compiler from moving the work for `number` past the wait, where it would
    no longer overlap with the kernel before.
    """
    return (number < -1e30) == 0
