"""Ways of writing the same texts, timed in turns (A B C A B C ...), so that a noisy machine is noisy for all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from draftproof.errors import DraftproofError

Ids = tuple[int, ...]


class Workload(NamedTuple):
    """What every way must be ready for: texts of one length that nothing ends early."""

    batch: int
    tokens: int  # of each text
    longest: int  # prompt, in tokens


class Run(NamedTuple):
    """What became of one batch of texts."""

    tokens: int  # of all texts together
    calls: int  # of the target, counted for each text that took part
    phases: dict[str, float]  # seconds; empty where a way does not tell
    seconds: float = 0.0
    memory: int = 0  # bytes that this way needs beside the weights
    guesses: int = 0  # of these, bytes that are there for guesses only, where a way tells

    @staticmethod
    def one_by_one(runs: Sequence[Run]) -> Run:
        """Several, one after another, as one."""
        phases = {name: sum(run.phases[name] for run in runs) for name in runs[0].phases}
        return Run(sum(run.tokens for run in runs), sum(run.calls for run in runs), phases)


Write = Callable[[Sequence[Ids], float, int], Run]  # prompts, temperature, seed


class Way(NamedTuple):
    """A named way of writing; `open` makes it ready for a workload."""

    name: str
    open: Callable[[Workload], Write]


class Ready(NamedTuple):
    """A way that runs here."""

    name: str
    write: Write
    kept: int  # bytes that it holds between texts


def open_ways(
    ways: Sequence[Way],
    workload: Workload,
    prompts: Sequence[Ids],
    temperatures: Sequence[float],
    device: str,
    notice: Callable[[str], object],
) -> list[Ready]:
    """Make every way write the prompts unmeasured: caches fill, kernels are compiled, graphs captured.

    On a GPU twice, because some graphs are captured when a shape comes again. A way that fails does not run on this
    machine; it is left out and `notice` hears why.
    """
    ready = []
    for way in ways:
        before = _held(device)
        try:
            write = way.open(workload)
            for temperature in [*temperatures] * (2 if device == "cuda" else 1):
                write(prompts, temperature, 0)
        except DraftproofError:  # ours, and the user can mend it
            raise
        except Exception as error:  # a peer's reasons are its own: compilers, memory, models it does not take
            said = str(error).strip().splitlines()
            notice(f"{way.name} does not run here: {said[0] if said else type(error).__name__}")
            continue
        ready.append(Ready(way.name, write, _held(device) - before))
    return ready


def take_turns(
    ready: Sequence[Ready], rounds: Sequence[Sequence[Ids]], temperature: float, seed: int, device: str
) -> dict[str, list[Run]]:
    """The runs of each way, one a round; in a round all have the same prompts and seed."""
    runs: dict[str, list[Run]] = {way.name: [] for way in ready}
    for number, prompts in enumerate(rounds):
        for way in ready:
            _forget_peak(device)
            before = _held(device)
            start = time.perf_counter()
            run = way.write(prompts, temperature, seed + number)
            seconds = time.perf_counter() - start
            memory = max(0, way.kept + _peak(device) - before)
            runs[way.name].append(run._replace(seconds=seconds, memory=memory))
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
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak becomes what is held now


def _status(name: str) -> int:
    """A figure of the process in bytes; zero on systems that do not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)
