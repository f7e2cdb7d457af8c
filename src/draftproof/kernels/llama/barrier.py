# mypy: ignore-errors
"""Programs of one launch that wait for each other, which works where all of them run at once (a cooperative launch)."""

import triton
import triton.language as tl


@triton.jit
def arrive(count, PROGRAMS: tl.constexpr):
    """What this program has written is there for all who `reach` this place."""
    if PROGRAMS > 1:
        tl.debug_barrier()
        tl.atomic_add(count, 1, sem="release")


@triton.jit
def reach(count, goal, PROGRAMS: tl.constexpr):
    """Wait until programs have arrived `goal` times since the launch began."""
    if PROGRAMS > 1:
        while tl.atomic_add(count, 0, sem="acquire") < goal:
            pass
