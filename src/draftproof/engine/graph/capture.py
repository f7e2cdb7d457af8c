"""Capture repeated calls as CUDA graphs: one launch instead of a thousand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from draftproof.models.static.head import StaticHead
from draftproof.models.static.packing import WIDEST
from draftproof.models.static.session import StaticSession

Result = TypeVar("Result")


@torch.no_grad()
def record(call: Callable[[], Result], pool: Any = None) -> tuple[Any, Result]:
    """Capture a call: its graph, and its result, whose memory every replay writes again.

    pool      memory pool shared by graphs whose results are not needed at the same time
    """
    graph = torch.cuda.CUDAGraph()
    # cuBLAS would share its workspace with the next capture, and compilers free it: this graph gets its own
    torch._C._cuda_clearCublasWorkspaces()
    with torch.cuda.graph(graph, pool=pool):
        result = call()
    torch._C._cuda_clearCublasWorkspaces()
    return graph, result


class Stopwatch:
    """Time of the host that went into compiling and capturing, since it was last read: it is start-up, not prefill."""

    def __init__(self) -> None:
        self._seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of this block."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds += time.perf_counter() - began

    def read(self) -> float:
        """The seconds, which begin at zero again."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class PromptReader:
    """Prefills packs of texts into a session; a width runs eagerly the first time and is captured the second time."""

    def __init__(
        self,
        session: StaticSession | StaticHead,
        record: Callable[..., tuple[Any, None]] | None,
        start: Stopwatch,
    ) -> None:
        """`record` captures a call; None to run everything eagerly."""
        self.session, self._record, self._start = session, record, start
        self._inputs: dict[int, torch.Tensor] = {}  # by width; `packs` makes few of them
        self._graphs: dict[int, Any] = {}

    def read(self, pack: torch.Tensor) -> None:
        """Prefill a pack: tokens, rows and positions [3, T] on the device."""
        width = pack.shape[1]
        if self._record is None or width > WIDEST:
            self.session.prefill(*pack)
        elif width not in self._inputs:
            self._inputs[width] = pack
            with self._start.running():  # the launches return before the device has done its part
                self.session.prefill(*pack)
        else:
            inputs = self._inputs[width].copy_(pack)
            if width not in self._graphs:
                with self._start.running():
                    self._graphs[width], _ = self._record(lambda: self.session.prefill(*inputs))
            self._graphs[width].replay()
