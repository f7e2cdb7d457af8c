"""Notice every kernel that Triton compiles: it takes about a second each, once, and the result is kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def compilations(note: Callable[[], object]) -> Iterator[None]:
    """Call `note` after each compilation in this block; not for kernels that are found on disk."""
    from triton import knobs

    before = knobs.compilation.listener

    def listener(**about: Any) -> None:
        if before is not None:
            before(**about)
        if not about["cache_hit"]:
            note()

    knobs.compilation.listener = listener
    try:
        yield
    finally:
        knobs.compilation.listener = before
