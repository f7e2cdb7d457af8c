"""Our ways of writing, with the engine that generate() would choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from draftproof.bench.turns import Ids, Run, Way, Workload, Write
from draftproof.draft import Tree
from draftproof.engine.eager.batch import Batch
from draftproof.engine.eager.rows import Member
from draftproof.engine.generate import choose_rule, open_batch
from draftproof.engine.graph.runner import FusedBatch
from draftproof.engine.request import Request
from draftproof.engine.trace import Trace
from draftproof.engine.tuning.shapes import Auto, trees_of, tuned
from draftproof.models.base import Model
from draftproof.sampling import Sampling

Open = Batch | FusedBatch


class Setup(NamedTuple):
    """Who writes and how."""

    target: Model
    draft: Model | None = None
    verify: str = "match"
    tree: str = "chain:0"
    compiled: bool = False  # on a GPU
    sampling: Sampling = Sampling()  # but for its temperature, which a run brings along
    lossy: str | None = None  # in place of `verify`


def each(name: str, setup: Setup) -> Way:
    """A row of the batch for every prompt."""

    def ready(workload: Workload) -> Write:
        batch = _opener(setup, workload)

        def write(prompts: Sequence[Ids], temperature: float, seed: int) -> Run:
            requests = _requests(setup, prompts, workload.tokens, temperature, seed)
            return _run(batch(), [[request] for request in requests])

        return write

    return Way(name, ready)


def together(name: str, setup: Setup) -> Way:
    """Samples of one prompt, which share it and every word they have in common."""

    def ready(workload: Workload) -> Write:
        batch = _opener(setup, workload)

        def write(prompts: Sequence[Ids], temperature: float, seed: int) -> Run:
            return _run(batch(), [_requests(setup, prompts, workload.tokens, temperature, seed)])

        return write

    return Way(name, ready)


def one_by_one(name: str, setup: Setup) -> Way:
    """Samples of one prompt, each alone."""

    def ready(workload: Workload) -> Write:
        batch = _opener(setup, workload._replace(batch=1))

        def write(prompts: Sequence[Ids], temperature: float, seed: int) -> Run:
            requests = _requests(setup, prompts, workload.tokens, temperature, seed)
            return Run.one_by_one([_run(batch(), [[request]]) for request in requests])

        return write

    return Way(name, ready)


def _opener(setup: Setup, workload: Workload) -> Callable[[], Open]:
    """A batch for every call, as generate() makes it; the one with a captured graph stays open, as a server's does."""
    rule, drafts = choose_rule(setup.verify, setup.lossy), [] if setup.draft is None else [setup.draft]
    shape = Auto(trees_of(rule)) if setup.tree == "auto" and drafts else Tree.chain(0)
    shape = Tree.parse(setup.tree) if setup.tree != "auto" and drafts else shape
    capacity = workload.longest + workload.tokens + shape.size

    def fresh() -> Open:
        now = tuned(rule, drafts, setup.lossy is None) if isinstance(shape, Auto) else shape  # as in generate()
        like = (setup.sampling, setup.sampling)
        return open_batch(setup.target, drafts, rule, now, like, workload.batch, capacity, compile=setup.compiled)

    kept = fresh()
    return (lambda: kept) if isinstance(kept, FusedBatch) else fresh


def _requests(setup: Setup, prompts: Sequence[Ids], tokens: int, temperature: float, seed: int) -> list[Request]:
    # nothing ends them, so every text has the full length
    sampling = replace(setup.sampling, temperature=temperature, end_tokens=())
    return [
        Request(setup.target, ids, sampling, sampling, tokens, (), Member(seed, number), Trace())
        for number, ids in enumerate(prompts)
    ]


def _run(batch: Open, groups: Sequence[list[Request]]) -> Run:
    """Requests that start together, to their end."""
    for group in groups:
        batch.add(group)
    while not batch.is_finished:
        batch.step()
    traces = [request.trace for group in groups for request in group]
    longest = max(traces, key=lambda trace: len(trace.steps))  # it was there in every step of the batch
    guesses = sum(batch.added.values()) if isinstance(batch, Batch) else 0
    return Run(sum(t.tokens for t in traces), sum(len(t.steps) for t in traces), longest.seconds, guesses=guesses)
