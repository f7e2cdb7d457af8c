"""Our ways of writing, with the engine that generate() would choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from draftproof.bench.turns import Ids, Run, Way, Workload, Write
from draftproof.engine.request import Request, SampleKey
from draftproof.engine.scheduler import Scheduler
from draftproof.engine.setup import Setup
from draftproof.models.base import Model
from draftproof.sampling import Sampling


class Contender(NamedTuple):
    """Who writes and how."""

    target: Model
    draft: Model | None = None
    verify: str = "match"
    tree: str = "chain:0"
    compiled: bool = False  # on a GPU
    sampling: Sampling = Sampling()  # but for its temperature, which a run brings along
    lossy: str | None = None  # in place of `verify`

    def setup(self) -> Setup:
        """As generate() makes it for texts that need not be repeatable."""
        verify = "block" if self.lossy is not None else self.verify
        tempers = self.lossy is None
        return Setup.of(
            self.target,
            self.draft,
            verify=verify,
            lossy=self.lossy,
            tree=self.tree,
            repeatable=False,
            tempers=tempers,
            compile=self.compiled,
        )


def each(name: str, contender: Contender) -> Way:
    """A row of the batch for every prompt."""

    def ready(workload: Workload) -> Write:
        opener = _Opener(contender, workload)

        def write(prompts: Sequence[Ids], temperature: float, seed: int) -> Run:
            return _run(opener, [[one] for one in enumerate(prompts)], workload.tokens, temperature, seed)

        return write

    return Way(name, ready)


def together(name: str, contender: Contender) -> Way:
    """Samples of one prompt, which share it and every word they have in common."""

    def ready(workload: Workload) -> Write:
        opener = _Opener(contender, workload)

        def write(prompts: Sequence[Ids], temperature: float, seed: int) -> Run:
            return _run(opener, [list(enumerate(prompts))], workload.tokens, temperature, seed)

        return write

    return Way(name, ready)


def one_by_one(name: str, contender: Contender) -> Way:
    """Samples of one prompt, each alone."""

    def ready(workload: Workload) -> Write:
        opener = _Opener(contender, workload._replace(batch=1))

        def write(prompts: Sequence[Ids], temperature: float, seed: int) -> Run:
            alone = [[[one]] for one in enumerate(prompts)]
            return Run.one_by_one([_run(opener, groups, workload.tokens, temperature, seed) for groups in alone])

        return write

    return Way(name, ready)


class _Opener:
    """A scheduler for every call, as generate() makes it; one with captured steps stays open, as a server's does."""

    def __init__(self, contender: Contender, workload: Workload) -> None:
        self.contender, self.rows = contender, workload.batch
        self.length = workload.longest + workload.tokens
        self._kept: tuple[Setup, Scheduler] | None = None

    def __call__(self) -> tuple[Setup, Scheduler]:
        if self._kept is not None:
            return self._kept
        setup = self.contender.setup()
        opened = setup, setup.scheduler(self.rows, self.length)
        sampling = replace(self.contender.sampling, end_tokens=())
        if setup.uses_graph((sampling, sampling), self.rows):
            self._kept = opened
        return opened


def _run(open: _Opener, groups: Sequence[Sequence[tuple[int, Ids]]], tokens: int, temperature: float, seed: int) -> Run:
    """Numbered prompts, in groups that start together, each written to its end."""
    setup, scheduler = open()
    # nothing ends them, so every text has the full length
    sampling = replace(open.contender.sampling, temperature=temperature, end_tokens=())
    requests: list[Request] = []
    for group in groups:
        some = [
            setup.request(ids, (sampling, sampling), tokens, SampleKey(seed, number), detokenize=False)
            for number, ids in group
        ]
        scheduler.add(some)
        requests += some
    while not scheduler.is_finished:
        scheduler.step()
    traces = [request.trace for request in requests]
    longest = max(traces, key=lambda trace: len(trace.steps))  # it was there in every step
    guesses = sum(scheduler.memory.values())
    return Run(sum(t.tokens for t in traces), sum(len(t.steps) for t in traces), longest.seconds, guesses=guesses)
