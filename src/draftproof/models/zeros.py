"""Zeros for the caches of texts, on a CPU in memory that is used again.

The system has zeros ready there, a small page when it is first touched. PyTorch would write them, by all threads: a
wait for the slowest, of milliseconds where other programs use the cores too. NumPy would ask for large pages, each of
which takes a millisecond or more to be made. But small ones take a microsecond or two each, and a short text touches
thousands. So memory that the last texts have left is kept, and cleared for the next ones.
"""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from math import prod
from weakref import finalize

import torch

KEPT = 64 << 20  # bytes at most that are kept while no text uses them
SPARE = 2  # memory may be so many times as large as what is asked for

# Of memory that no other process shares; on Windows none is
PRIVATE: dict[str, int] = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}

_left: list[mmap.mmap] = []  # by earlier texts, the longest unused first


def zeros(like: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Zeros of the same kind as a tensor."""
    size = prod(shape) * like.itemsize
    if like.device.type != "cpu" or torch.compiler.is_compiling() or not size:
        return like.new_zeros(shape)
    used = _take(size)
    memory = mmap.mmap(-1, size, **PRIVATE) if used is None else used
    view = memoryview(memory)[:size]  # tensors hold it: it goes with the last of them
    finalize(view, _give_back, memory).atexit = False
    whole = torch.frombuffer(view, dtype=like.dtype).view(shape)
    return whole if used is None else whole.zero_()


def _take(size: int) -> mmap.mmap | None:
    """The smallest memory that is left and large enough; none where all of it is much too large."""
    fitting = [memory for memory in list(_left) if size <= len(memory) <= SPARE * size]
    for memory in sorted(fitting, key=len):
        try:
            _left.remove(memory)  # by one thread alone
        except ValueError:
            continue
        return memory
    return None


def _give_back(memory: mmap.mmap) -> None:
    """Keep memory for later texts, and free what was left first where it is too much; called wherever a text ends."""
    _left.append(memory)
    while sum(map(len, list(_left))) > KEPT:
        with suppress(IndexError):  # another thread was faster
            _left.pop(0)
