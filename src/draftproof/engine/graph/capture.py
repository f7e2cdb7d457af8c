"""Capture repeated calls as CUDA graphs: one launch instead of a thousand."""

from __future__ import annotations

from collections.abc import Callable
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


class PromptReader:
    """Prefills packs of texts into a session; a width runs eagerly the first time and is captured the second time."""

    def __init__(self, session: StaticSession | StaticHead, record: Callable[..., tuple[Any, None]] | None) -> None:
        """`record` captures a call; None to run everything eagerly."""
        self.session, self._record = session, record
        self._inputs: dict[int, torch.Tensor] = {}  # by width; `packs` makes few of them
        self._graphs: dict[int, Any] = {}

    def read(self, pack: torch.Tensor) -> None:
        """Prefill a pack: tokens, rows and positions [3, T] on the device."""
        width = pack.shape[1]
        if self._record is None or width > WIDEST:
            self.session.prefill(*pack)
        elif width not in self._inputs:
            self._inputs[width] = pack
            self.session.prefill(*pack)
        else:
            inputs = self._inputs[width].copy_(pack)
            if width not in self._graphs:
                self._graphs[width], _ = self._record(lambda: self.session.prefill(*inputs))
            self._graphs[width].replay()
