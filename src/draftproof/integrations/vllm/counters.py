"""Counters that a worker adds to in every step, and other processes read: one small file of numbers for each worker.

vLLM has no way for numbers to come from a worker to its metrics but asking it between two steps. A file that both have
mapped costs a worker nothing and never waits. Only the first rank of a tensor-parallel group writes: all ranks draw
the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from draftproof.kernels.types import ChainRule

VARIABLE = "DRAFTPROOF_VLLM_COUNTERS"  # the folder; set where the engine is configured, inherited by its workers
POSITIONS = 128  # the longest draft that vLLM allows
SCALARS = ("steps", "drafted", "accepted", "expected", "faulty")
WIDTH = len(SCALARS) + 3 * POSITIONS
SECONDS = 1.0  # between two copies from a GPU


class RuleCounts(NamedTuple):
    """What was counted of one rule."""

    steps: float  # of one request, with at least one draft token
    drafted: float  # draft tokens
    accepted: float  # of these
    expected: float  # accepted on average over what verification draws
    faulty: float  # steps with a fault (kernels.Fault)
    drafted_at: list[float]  # by position, from the first draft token to the last that was ever there
    accepted_at: list[float]
    expected_at: list[float]


_warming_up = False


@contextmanager
def warm_up() -> Iterator[None]:
    """Steps are not counted: vLLM verifies drafts of requests that nobody has made, to compile its kernels."""
    global _warming_up
    _warming_up = True
    try:
        yield
    finally:
        _warming_up = False


def warming_up() -> bool:
    """Whether vLLM is."""
    return _warming_up


class Counters:
    """Sums by rule, where the tensors are that they are computed from."""

    def __init__(self, device: torch.device, writes: bool = True) -> None:
        folder = os.environ.get(VARIABLE)
        if folder and writes:
            path = Path(folder) / f"{os.getpid()}.f64"
            if not path.exists():  # a process that makes engines one after another goes on counting
                np.zeros((len(ChainRule), WIDTH)).tofile(path)
            self.shared = torch.from_numpy(np.memmap(path, np.float64, "r+", shape=(len(ChainRule), WIDTH)))
        else:
            self.shared = torch.zeros(len(ChainRule), WIDTH, dtype=torch.float64)
        self.table = self.shared if device.type == "cpu" else self.shared.to(device)
        self._copied: torch.cuda.Event | None = None
        self._host = self.shared if device.type == "cpu" else torch.zeros_like(self.shared).pin_memory()
        self._next = time.monotonic() + SECONDS

    def add(
        self,
        rule: Tensor,  # [B]
        tokens: Tensor,  # [B, K] the draft tokens
        accepted: Tensor,  # [B] how many of them were accepted
        reach: Tensor,  # [B, K]
        fault: Tensor,  # [B]
        fused: bool = False,  # whether to do it by one launch
    ) -> Tensor:
        """Count one step of B requests; [B] int32, how many tokens each gets."""
        table = torch.zeros_like(self.table) if _warming_up else self.table
        if fused:
            from draftproof.integrations.vllm import launches

            return launches.add_up(table, rule, tokens, accepted, reach, fault)
        return add_up(table, rule, tokens, accepted, reach, fault)

    def publish(self) -> None:
        """Copy the sums from a GPU now and then, without waiting for it; CUDA bars that while it captures a graph."""
        if self.table is self.shared or _warming_up or torch.cuda.is_current_stream_capturing():
            return
        if self._copied is not None and self._copied.query():  # type: ignore[no-untyped-call]
            self.shared.copy_(self._host)
            self._copied = None
        if self._copied is None and time.monotonic() >= self._next:
            self._next = time.monotonic() + SECONDS
            self._host.copy_(self.table, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()


def add_up(table: Tensor, rule: Tensor, tokens: Tensor, accepted: Tensor, reach: Tensor, fault: Tensor) -> Tensor:
    """Add the numbers of one step to a table; [B] int32, how many tokens each request gets.

    `launches.add_up` has the same in one launch.
    """
    drafts = (tokens >= 0).to(torch.float64)
    place = torch.arange(tokens.shape[1], device=tokens.device)
    taken = (place < accepted[:, None]).to(torch.float64)
    scalars = [drafts.sum(1) > 0, drafts.sum(1), accepted, reach.sum(1), fault != 0]
    rows = [torch.stack([each.to(torch.float64) for each in scalars], dim=1)]
    rows += [torch.nn.functional.pad(each, (0, POSITIONS - len(place))) for each in (drafts, taken, reach.double())]
    table.index_add_(0, rule.to(torch.int64), torch.cat(rows, dim=1))
    return accepted + 1


def read(folder: str | os.PathLike[str] | None = None) -> dict[str, RuleCounts]:
    """The sums over all workers that write into a folder, by rule; by default into this engine's."""
    folder = folder or os.environ.get(VARIABLE)
    files = sorted(Path(folder).glob("*.f64")) if folder else []
    tables = [np.fromfile(file, np.float64) for file in files]
    total = np.zeros((len(ChainRule), WIDTH))
    for table in tables:
        if table.size == total.size:  # a worker may be making its file just now
            total += table.reshape(total.shape)
    return {rule.name.lower(): _counts(total[rule]) for rule in ChainRule}


def _counts(row: Any) -> RuleCounts:
    by_position = row[len(SCALARS) :].reshape(3, POSITIONS)
    depth = int(np.count_nonzero(by_position[0]))
    return RuleCounts(*row[: len(SCALARS)].tolist(), *(part[:depth].tolist() for part in by_position))
