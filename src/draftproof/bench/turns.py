"""Time candidates in turns (A B C A B C ...), so that noise of the machine affects all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from draftproof.errors import DraftproofError

Ids = tuple[int, ...]


class Workload(NamedTuple):
    """The work of every candidate: texts of one length that no end token ends early."""

    batch: int
    tokens: int  # of each text
    longest: int  # prompt, in tokens


class Run(NamedTuple):
    """The measurements of one batch of texts."""

    tokens: int  # of all texts together
    calls: int  # of the target, counted for each text that took part
    phases: dict[str, float]  # seconds; empty where a candidate does not report them
    seconds: float = 0.0
    memory: int = 0  # bytes needed besides the weights
    guesses: int = 0  # of these, bytes for drafting alone, where reported

    @staticmethod
    def one_by_one(runs: Sequence[Run]) -> Run:
        """Combine several runs that were made one after another."""
        phases = {name: sum(run.phases[name] for run in runs) for name in runs[0].phases}
        return Run(sum(run.tokens for run in runs), sum(run.calls for run in runs), phases)


Write = Callable[[Sequence[Ids], float, int], Run]  # prompts, temperature, seed


class Candidate(NamedTuple):
    """A named engine to measure; `open` prepares it for a workload."""

    name: str
    open: Callable[[Workload], Write]


class WarmCandidate(NamedTuple):
    """A candidate that runs on this machine, warmed up."""

    name: str
    write: Write
    held: int  # bytes that it holds between texts


def warm_up(
    candidates: Sequence[Candidate],
    workload: Workload,
    prompts: Sequence[Ids],
    temperatures: Sequence[float],
    device: str,
    notice: Callable[[str], object],
) -> list[WarmCandidate]:
    """Run every candidate once unmeasured: caches fill, kernels are compiled, graphs captured.

    On a GPU twice, because some graphs are captured when a shape occurs again. A candidate that fails is left out, and
    the reason is passed to `notice`.
    """
    ready = []
    for candidate in candidates:
        before = _held(device)
        try:
            write = candidate.open(workload)
            for temperature in [*temperatures] * (2 if device == "cuda" else 1):
                write(prompts, temperature, 0)
        except DraftproofError:  # an error that the user can fix
            raise
        except Exception as error:  # peers fail for many reasons: compilers, memory, unsupported models
            lines = str(error).strip().splitlines()
            notice(f"{candidate.name} does not run here: {lines[0] if lines else type(error).__name__}")
            continue
        ready.append(WarmCandidate(candidate.name, write, _held(device) - before))
    return ready


def take_turns(
    ready: Sequence[WarmCandidate], rounds: Sequence[Sequence[Ids]], temperature: float, seed: int, device: str
) -> dict[str, list[Run]]:
    """The runs of each candidate, one per round; in a round all have the same prompts and seed."""
    runs: dict[str, list[Run]] = {candidate.name: [] for candidate in ready}
    for number, prompts in enumerate(rounds):
        for candidate in ready:
            _forget_peak(device)
            before = _held(device)
            start = time.perf_counter()
            run = candidate.write(prompts, temperature, seed + number)
            seconds = time.perf_counter() - start
            memory = max(0, candidate.held + _peak(device) - before)
            runs[candidate.name].append(run._replace(seconds=seconds, memory=memory))
    return runs


def _held(device: str) -> int:
    """Bytes in use now: tensors on a GPU, the whole process on a CPU."""
    return torch.cuda.memory_allocated() if device == "cuda" else _status("VmRSS")


def _peak(device: str) -> int:
    return torch.cuda.max_memory_allocated() if device == "cuda" else _status("VmHWM")


def _forget_peak(device: str) -> None:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    elif Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")  # Linux: resets the peak to the current use


def _status(name: str) -> int:
    """A value of /proc/self/status in bytes; zero on systems without it."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)
