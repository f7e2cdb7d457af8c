"""A lock that one process at a time can hold, so that several can fill the same cache."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, doing: str) -> Iterator[None]:
    """Hold the lock on `path`, a file that is made for it; whoever must wait says once what another process is doing.

    The operating system frees the lock of a process that is killed.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        print(f"waiting for another process, which is {doing}", file=sys.stderr, flush=True)
        lock.acquire(poll_interval=0.1)
    try:
        yield
    finally:
        lock.release()
