# mypy: ignore-errors
"""A barrier among the programs of one launch; it needs a cooperative launch, in which all of them run at once."""

import triton
import triton.language as tl


@triton.jit
def arrive(count, PROGRAMS: tl.constexpr):
    """Publish what this program has written to every program that passes `wait_for` after it."""
    if PROGRAMS > 1:
        tl.debug_barrier()
        tl.atomic_add(count, 1, sem="release")


@triton.jit
def wait_for(count, goal, PROGRAMS: tl.constexpr):
    """Spin until there have been `goal` arrivals since the launch began."""
    if PROGRAMS > 1:
        while tl.atomic_add(count, 0, sem="acquire") < goal:
            pass
