"""CUDA graphs of calls that come again: the host starts each by one launch in place of a thousand."""

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
    """A graph of what a call starts on the device, and what it returns, which is every replay's.

    pool      memory that graphs share which need nothing of one another
    """
    graph = torch.cuda.CUDAGraph()
    # cuBLAS keeps its scratch memory for whoever captures next, and compilers free it: this graph has its own
    torch._C._cuda_clearCublasWorkspaces()
    with torch.cuda.graph(graph, pool=pool):
        result = call()
    torch._C._cuda_clearCublasWorkspaces()
    return graph, result


class PromptReader:
    """Reads packs of texts into a session. A width is read as it comes, and recorded if it comes again."""

    def __init__(self, session: StaticSession | StaticHead, record: Callable[..., tuple[Any, None]] | None) -> None:
        """`record`: how, or None where nothing is to be recorded."""
        self.session, self._record = session, record
        self._inputs: dict[int, torch.Tensor] = {}  # by width; `packs` makes few of them
        self._graphs: dict[int, Any] = {}

    def read(self, pack: torch.Tensor) -> None:
        """Tokens, rows and positions [3, T], on the device."""
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
