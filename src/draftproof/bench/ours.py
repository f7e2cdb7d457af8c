"""Our candidates of a benchmark, with the set-up that generate() would choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from draftproof.bench.turns import Candidate, Ids, Run, Workload, Write
from draftproof.engine.request import Request, SampleKey
from draftproof.engine.scheduler import Scheduler
from draftproof.engine.setup import Setup
from draftproof.models.base import Model
from draftproof.sampling import Sampling


class Contender(NamedTuple):
    """A configuration of our engine: models, rule, tree and sampling."""

    target: Model
    draft: Model | None = None
    verify: str = "match"
    tree: str = "chain:0"
    compiled: bool = False  # on a GPU
    sampling: Sampling = Sampling()  # except the temperature, which each run sets
    lossy: str | None = None  # in place of `verify`

    def setup(self) -> Setup:
        """The set-up that generate() uses without a seed."""
        verify = "auto" if self.lossy is not None else self.verify
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


def one_row_each(name: str, contender: Contender) -> Candidate:
    """Each prompt in a row of the batch."""

    def ready(workload: Workload) -> Write:
        opener = _Opener(contender, workload)

        def write(prompts: Sequence[Ids], temperature: float, seed: int) -> Run:
            return _run(opener, [[numbered] for numbered in enumerate(prompts)], workload.tokens, temperature, seed)

        return write

    return Candidate(name, ready)


def together(name: str, contender: Contender) -> Candidate:
    """Samples of one prompt in one batch, which share the prefix they have in common."""

    def ready(workload: Workload) -> Write:
        opener = _Opener(contender, workload)

        def write(prompts: Sequence[Ids], temperature: float, seed: int) -> Run:
            return _run(opener, [list(enumerate(prompts))], workload.tokens, temperature, seed)

        return write

    return Candidate(name, ready)


def one_by_one(name: str, contender: Contender) -> Candidate:
    """Samples of one prompt, one after another."""

    def ready(workload: Workload) -> Write:
        opener = _Opener(contender, workload._replace(batch=1))

        def write(prompts: Sequence[Ids], temperature: float, seed: int) -> Run:
            alone = [[[numbered]] for numbered in enumerate(prompts)]
            return Run.one_by_one([_run(opener, groups, workload.tokens, temperature, seed) for groups in alone])

        return write

    return Candidate(name, ready)


class _Opener:
    """Opens a scheduler for every call, like generate(); one with captured steps stays open, like a server's."""

    def __init__(self, contender: Contender, workload: Workload) -> None:
        self.contender, self.rows = contender, workload.batch
        self.length = workload.longest + workload.tokens
        self._reused: tuple[Setup, Scheduler] | None = None

    def __call__(self) -> tuple[Setup, Scheduler]:
        if self._reused is not None:
            return self._reused
        setup = self.contender.setup()
        opened = setup, setup.scheduler(self.rows, self.length)
        sampling = replace(self.contender.sampling, end_tokens=())
        if setup.uses_graph((sampling, sampling), self.rows):
            self._reused = opened
        return opened


def _run(open: _Opener, groups: Sequence[Sequence[tuple[int, Ids]]], tokens: int, temperature: float, seed: int) -> Run:
    """Generate texts for numbered prompts, in groups that start together."""
    setup, scheduler = open()
    # no end tokens, so every text has the full length
    sampling = replace(open.contender.sampling, temperature=temperature, end_tokens=())
    requests: list[Request] = []
    for group in groups:
        batch = [
            setup.request(ids, (sampling, sampling), tokens, SampleKey(seed, number), detokenize=False)
            for number, ids in group
        ]
        scheduler.add(batch)
        requests += batch
    while not scheduler.is_finished:
        scheduler.step()
    traces = [request.trace for request in requests]
    longest = max(traces, key=lambda trace: len(trace.steps))  # it took part in every step
    guesses = sum(scheduler.memory.values())
    return Run(sum(t.tokens for t in traces), sum(len(t.steps) for t in traces), longest.seconds, guesses=guesses)
