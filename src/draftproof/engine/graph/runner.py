"""The graph stepper: the host replays a captured step while it reads the tokens of the one before.

So the device never waits for the host. On a CPU the same step runs eagerly, with the tokens of the eager stepper.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from draftproof import kernels
from draftproof.couple import COUPLINGS
from draftproof.draft import Tree
from draftproof.engine.graph.step import NO_LAW, PHASES, RULES, DeviceResult, DeviceStep, HostResult
from draftproof.engine.memory import OutOfMemory, too_long
from draftproof.engine.request import Request
from draftproof.engine.scheduler import Outcome
from draftproof.engine.trace import Step, reached_by_depth, shape_name
from draftproof.engine.tuning import Fixed, StepReport, Tuner
from draftproof.errors import DraftproofError
from draftproof.kernels import Controls
from draftproof.kernels.types import Fault, unsupported
from draftproof.models.base import Model
from draftproof.models.drafters.head import HeadModel
from draftproof.models.hf import HFModel
from draftproof.models.llama.masks import TREE_NODES
from draftproof.sampling import Context, Sampling

LOST = "the model returned non-finite scores, or no token is allowed: check its weights"
ROOM = 256  # capacities are multiples of it, so that a slightly longer text can reuse captured graphs


class GraphKind(NamedTuple):
    """The configuration that graphs are captured for."""

    draft: Any  # HFModel, HeadModel of the target, or None
    rule: str
    tree: Tree  # of a step; the largest one where it is tuned
    rows: int
    compiled: bool = False


def fits(target: Model, drafts: Sequence[Model], rule: str, tree: Tree, samplings: tuple[Sampling, Sampling]) -> bool:
    """Whether a captured step supports this configuration; the eager stepper serves all others."""
    return (
        isinstance(target, HFModel)
        and all(model.has_fixed_masks for model in (target, *drafts) if isinstance(model, HFModel))
        and target.network.device.type == "cuda"
        and kernels.available(target.network.device)  # without them a step waits for the host, which no graph can
        and len(drafts) <= 1
        and all(isinstance(draft, HFModel) or _is_head(draft, target) for draft in drafts)
        and (_chain_fits(bool(drafts), rule) if tree.is_chain else _tree_fits([target, *drafts], rule, tree))
        and samplings[0] == samplings[1]
        and not unsupported(samplings[0])
        and (tree.is_chain or not samplings[0].reads_history)  # penalties differ from path to path
    )


def _chain_fits(drafts: bool, rule: str) -> bool:
    return rule in RULES or not (drafts or rule in COUPLINGS)  # a coupling draws with noise of its own


def _tree_fits(models: Sequence[Model], rule: str, tree: Tree) -> bool:
    windows = [window for model in models if isinstance(model, HFModel) for window in model.windows.values()]
    return (
        rule == "traversal"
        and len(models) > 1
        and tree.size <= TREE_NODES
        and all(window is None or window > tree.depth[-1] for window in windows)
    )


def _is_head(draft: Model, target: Model) -> bool:
    return isinstance(draft, HeadModel) and draft.target is target


def reopen(target: Any, kind: GraphKind, capacity: int, tuner: Tuner) -> GraphStepper:
    """The stepper of this target's last texts, if it is of this kind and idle; else a new one.

    Graphs that were captured for one text are then reused for the next.
    """
    last: GraphStepper | None = target.kept.get("graph")
    if last is None or last.kind != kind or last.capacity < capacity or last.is_busy or last.in_flight:
        last = target.kept["graph"] = None  # free its memory first
        last = target.kept["graph"] = GraphStepper(target, kind, -(-capacity // ROOM) * ROOM, tuner)
    last.tuner = tuner if kind.draft is not None else Fixed(Tree.chain(0))
    return last


class GraphPending(NamedTuple):
    """A step in flight: its requests, its result, and the event that signals it."""

    requests: list[Request | None]
    tree: Tree
    result: DeviceResult | None  # None where there was no memory for it
    done: Any  # a CUDA event, or None
    joins: bool  # whether prompts were prefilled before it
    seconds: dict[str, float]  # by phase; filled when it is collected
    steps: list[Step]  # of its texts; filled when it is collected
    failed: tuple[Outcome, ...] = ()  # of the request whose prompt did not fit into memory


class GraphStepper:
    """Requests in the rows of a DeviceStep, one each."""

    lookahead = 1  # one step stays in flight, so that the device never waits for the host

    def __init__(self, target: Any, kind: GraphKind, capacity: int, tuner: Tuner) -> None:
        self.kind, self.capacity = kind, capacity
        tree = kind.tree if kind.draft is not None else Tree.chain(0)
        self.tuner = tuner if kind.draft is not None else Fixed(tree)
        # a text that has ended is noticed while one more step is in flight
        room = capacity + tree.size + tree.depth[-1] + 1
        self.device_step = DeviceStep(target, kind.draft, kind.rule, tree, kind.rows, room, kind.compiled)
        self.state, self.device = self.device_step.state, self.device_step.device
        self.vocabulary, self.tree = target.vocabulary, tree
        self.requests: list[Request | None] = [None] * kind.rows
        self.samplings = [Sampling()] * kind.rows
        self.in_flight: list[GraphPending] = []
        self._new: dict[int, Request] = {}  # by row: requests whose prompts have still to be prefilled
        self._stale: set[int] = set()  # rows whose KV cache may contain NaN, which no mask hides
        self._drafting = True  # until the drafter fails; tried again when the next request joins
        self._behind = False  # whether the drafter missed the last step
        self._collected = 0.0  # time when the last step was collected

    def join(self, requests: Sequence[Request]) -> None:
        """Give rows to requests; their prompts are prefilled together before the next step."""
        free = [row for row, request in enumerate(self.requests) if request is None]
        if len(requests) > len(free):
            raise DraftproofError(f"there are only {len(free)} free rows for {len(requests)} texts: step first")
        for row, request in zip(free, requests, strict=False):
            self.requests[row] = self._new[row] = request
        self._drafting = True

    def leave(self, requests: Sequence[Request]) -> None:
        """Free rows; the device is not told, because a write between steps would make it wait for the host."""
        for request in requests:
            row = self.requests.index(request)
            in_flight = any(pending.requests[row] is request for pending in self.in_flight)
            # a step in flight writes after the end; a failed or cancelled text may have been in a step that raised
            if in_flight or request.finish in ("cancelled", "failed"):
                self._stale.add(row)
            self.requests[row] = None
            self._new.pop(row, None)

    @property
    def is_busy(self) -> bool:
        return any(self.requests)

    @property
    def needs_results(self) -> bool:
        """Whether the next launch needs the tokens of the steps in flight.

        That is so if no text is sure to need another step, if penalties have to be counted again, or if the drafter has
        to read what was generated without it; or if a request has failed that would be prefilled again.
        """
        failed = any(pending.result is None for pending in self.in_flight)
        behind = self._behind and self._next_tree().size > 1
        return failed or not self._goes_on() or self._recounts() or behind

    def _goes_on(self) -> bool:
        for request in self.requests:
            if request is not None:
                coming = sum(pending.tree.depth[-1] + 1 for pending in self.in_flight if request in pending.requests)
                if request.left > coming:
                    return True
        return False

    def _recounts(self) -> bool:
        if not self._new:
            return False
        samplings = self._next_samplings()
        return samplings != self.samplings and any(sampling.reads_history for sampling in samplings)

    def _next_samplings(self) -> list[Sampling]:
        return [self._new[row].sampling if row in self._new else old for row, old in enumerate(self.samplings)]

    def _next_tree(self) -> Tree:
        return self.tuner.tree if self._drafting else Tree.chain(0)

    def launch(self) -> GraphPending:
        """Prefill the prompts of new rows, and start a step; if memory is short, the longest of them fails instead."""
        if not self.in_flight:
            self._collected = time.perf_counter()
        new = list(self._new.values())
        try:
            pending = self._launch()
        except OutOfMemory:
            if not new:
                raise
            longest = max(new, key=lambda request: len(request.prompt))
            others = sum(request is not None for request in self.requests) - 1
            failed = Outcome(longest, error=too_long(longest, others))
            pending = GraphPending([None] * self.kind.rows, Tree.chain(0), None, None, False, {}, [], (failed,))
        self.in_flight.append(pending)
        return pending

    def _launch(self) -> GraphPending:
        joins, tree = bool(self._new), self._next_tree()
        if joins:
            self._join()
        if tree.size > 1 and self._behind:
            self._catch_up()
        self._behind = tree.size == 1
        result = self.device_step.run(tree).to_host()
        done: Any = None
        if self.device.type == "cuda":
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        return GraphPending(list(self.requests), tree, result, done, joins, {}, [])

    def collect(self, pending: GraphPending) -> list[Outcome]:
        """The outcomes of a step for the texts that have not ended meanwhile."""
        if pending.done is not None:
            pending.done.synchronize()
        self.in_flight.remove(pending)
        if pending.result is None:
            return [outcome for outcome in pending.failed if not outcome.request.finish]
        start = self.device_step.start.read()
        pending.seconds.update(self._seconds(pending.result, pending.joins, start))
        result = pending.result.read()
        self._note_failure(pending, result)
        outcomes = []
        for row, request in enumerate(pending.requests):
            if request is None or request.finish:
                continue
            request.trace.start_seconds += start
            if result.fault[row] & Fault.TARGET:
                outcomes.append(Outcome(request, error=DraftproofError(self._lost(request))))
                continue
            drawn = [node for node, token in enumerate(result.drafted[row], start=1) if token >= 0]
            depth = max((pending.tree.depth[node] for node in drawn), default=0)
            step = Step(
                tokens=tuple(token for token in result.tokens[row] if token >= 0),
                drafted=len(drawn),
                depth=depth,
                accepted=result.accepted[row],
                reached=reached_by_depth(result.stop[row], pending.tree)[:depth],
                cost=(),
                seconds=pending.seconds,
            )
            pending.steps.append(step)
            outcomes.append(Outcome(request, step, shape_name(pending.tree) if self.tuner.tunes else ""))
        return outcomes

    def _lost(self, request: Request) -> str:
        """Why a text cannot go on; the device does not distinguish the two reasons."""
        masked = request.sampling.allowed is not None or len(request.sampling.banned)
        return LOST if masked else NO_LAW

    def _note_failure(self, pending: GraphPending, result: HostResult) -> None:
        """Stop drafting until the next request joins; a failure is counted once, though steps in flight repeat it.

        A row where the target has no law either, or whose text has ended, is no failure of the drafter.
        """
        live = [(row, one) for row, one in enumerate(pending.requests) if one is not None and not one.finish]
        failure = result.failure
        if failure is None and any(result.fault[row] & (Fault.DRAFT | Fault.TARGET) == Fault.DRAFT for row, _ in live):
            failure = NO_LAW
        if failure is not None and self._drafting:
            self._drafting = False
            for _, request in live:
                request.trace.failures[failure] += 1

    def learn(self, pending: GraphPending) -> None:
        """Let the tuner learn from a step, unless all its texts had ended while it was in flight."""
        if pending.steps:
            self.tuner.learn(StepReport(pending.tree, pending.tree, pending.steps, pending.seconds, pending.joins))

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that drafting adds, by purpose."""
        return self.device_step.memory

    @torch.no_grad()
    def _join(self) -> None:
        """Prefill the prompts of the new rows, each prompt once, and set the rows' state and controls."""
        requests = self._new
        texts: dict[Sequence[int], list[int]] = {}
        for row, request in requests.items():
            texts.setdefault(request.prompt, []).append(row)
        stale = sorted(self._stale & requests.keys())
        if stale:
            index = self._send(stale)
            for session in self.device_step.sessions:
                session.cache.clear_rows(index)
            self._stale.difference_update(stale)
        self.device_step.read((rows[0], text) for text, rows in texts.items())
        same = [(rows[0], row) for rows in texts.values() for row in rows[1:]]
        if same:
            sources, targets = self._send(same).unbind(1)
            self.state.text[targets] = self.state.text[sources]
            for session in self.device_step.sessions:
                session.copy(sources, targets, max(map(len, texts)) - 1)  # a step reads the last token
        index = self._send(list(requests))
        numbers = [_row_state(new) for new in requests.values()]
        for column, values in zip(self.state[1:], self._send(numbers).unbind(1), strict=True):
            column[index] = values
        self._control(index)
        self._new = {}  # last: if any of this raises, such as out of memory, all of it is repeated

    def _send(self, values: Sequence[Any]) -> torch.Tensor:
        """Copy integers to the device without waiting for it."""
        return torch.tensor(values, dtype=torch.int64).to(self.device, non_blocking=True)

    def _control(self, index: torch.Tensor) -> None:
        """Set the controls of new rows; if they equal those of the rows' last texts, only counts are reset."""
        samplings, controls = self._next_samplings(), self.device_step.controls
        if controls is None or samplings != self.samplings:
            self._set_controls(samplings)
        elif controls.seen is not None and controls.made is not None:
            ids = self.state.text[index, 1:]
            inside = torch.arange(ids.shape[1], device=self.device) <= self.state.base[index, None]
            counts = torch.zeros(len(index), self.vocabulary, dtype=controls.seen.dtype, device=self.device)
            controls.seen[index] = counts.scatter_add_(1, ids, inside.to(counts.dtype))
            controls.made.index_fill_(0, index, 0)  # an assignment would sync

    def _set_controls(self, samplings: list[Sampling]) -> None:
        """Set the controls of all rows; steps are captured again only if their memory or kind changes."""
        contexts = None
        if any(sampling.reads_history for sampling in samplings):
            texts = [(text.prompt, tuple(text.tokens)) if text else ((), ()) for text in self.requests]
            contexts = [Context(*text) for text in texts]
        fresh = Controls.of(samplings, self.tree.size, self.vocabulary, "cpu", contexts)
        old = self.device_step.controls
        if old is not None and _same_kind(old, fresh):
            for buffer, new in zip(old, fresh, strict=True):
                if isinstance(buffer, torch.Tensor) and isinstance(new, torch.Tensor):
                    buffer.copy_(new, non_blocking=True)
        else:
            moved = (part.to(self.device) if isinstance(part, torch.Tensor) else part for part in fresh)
            self.device_step.controls = Controls._make(moved)
        self.samplings = samplings

    @torch.no_grad()
    def _catch_up(self) -> None:
        """Let the drafter read the tokens that were generated without it."""
        texts = [(row, (*text.prompt, *text.tokens)) for row, text in enumerate(self.requests) if text is not None]
        self.device_step.read(texts, drafter_only=True)

    def _seconds(self, result: DeviceResult, joins: bool, start: float) -> dict[str, float]:
        """Phases by the device's clock; the remaining time was start-up, prefill, or overhead of the host."""
        clock = result.clock.tolist()
        phases = {phase: (clock[i + 1] - clock[i]) / 1e9 for i, phase in enumerate(PHASES)}
        now = time.perf_counter()
        rest, self._collected = max(now - self._collected - sum(phases.values()) - start, 0.0), now
        return {"prompt": rest * joins, **phases, "overhead": rest * (not joins)}


def _row_state(request: Request) -> tuple[int, ...]:
    """The state of a row whose text begins; the fields of DeviceState after the text."""
    last = len(request.prompt) - 1
    return last, 0, last + request.left, last + 1 + request.depth, *request.key


def _same_kind(old: Controls, new: Controls) -> bool:
    """Whether the values of one can be copied over those of the other."""
    pairs = zip(old, new, strict=True)
    return all(
        a.shape == b.shape if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b for a, b in pairs
    )
