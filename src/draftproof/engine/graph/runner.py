"""Steps without the host: it replays a recorded one and reads the tokens of the one before.

So it never makes the device wait. On a CPU the same step runs eagerly; its tokens are those of the general engine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from draftproof.couple import COUPLINGS
from draftproof.draft import Tree
from draftproof.engine.detokenize import Piece
from draftproof.engine.graph.step import PHASES, RULES, Made, Resident
from draftproof.engine.request import Request
from draftproof.engine.trace import Step
from draftproof.engine.tuning.lengths import Pace
from draftproof.engine.tuning.shapes import name
from draftproof.errors import DraftproofError
from draftproof.kernels import Controls
from draftproof.kernels.types import Fault, unsupported
from draftproof.models.base import Model
from draftproof.models.drafters.head import HeadModel
from draftproof.models.hf import HFModel
from draftproof.models.llama.masks import TREE_NODES
from draftproof.sampling import Context, Sampling

ROOM = 256  # tokens: capacities are multiples of it, so that a text finds the room of another that was a little shorter

LOST = "the model returned non-finite scores, or no token is allowed: check its weights"


def fits(
    target: Model, drafts: Sequence[Model], rule: str, shape: object, samplings: tuple[Sampling, Sampling]
) -> bool:
    """Whether the fused step can do what is asked; the general engine does everything else."""
    return (
        isinstance(target, HFModel)
        and target.network.device.type == "cuda"
        and len(drafts) <= 1
        and all(isinstance(draft, HFModel) or _is_head(draft, target) for draft in drafts)
        and isinstance(shape, Tree)
        and (_chain_fits(bool(drafts), rule) if shape.is_chain else _tree_fits([target, *drafts], rule, shape))
        and samplings[0] == samplings[1]
        and not unsupported(samplings[0])
        and (shape.is_chain or not samplings[0].reads_history)  # penalties differ from path to path
    )


def _chain_fits(guesses: bool, rule: str) -> bool:
    return rule in RULES or not (guesses or rule in COUPLINGS)  # a coupling draws with noise of its own


def _tree_fits(models: Sequence[Any], rule: str, tree: Tree) -> bool:
    windows = [window for model in models if isinstance(model, HFModel) for window in model.windows.values()]
    return (
        rule == "traversal"
        and len(models) > 1
        and tree.size <= TREE_NODES
        and all(window is None or window > tree.depth[-1] for window in windows)
    )


def _is_head(draft: Model, target: Model) -> bool:
    return isinstance(draft, HeadModel) and draft.target is target


def reopen(
    target: Any, draft: Any, rule: str, tree: Tree, rows: int, capacity: int, compiled: bool, pace: Pace | None
) -> FusedBatch:
    """A FusedBatch for these; the last one of this target, if it is of this kind and nobody writes in it.

    What was recorded for one text serves the next then, and need not be recorded anew.
    """
    kind = (draft, rule, tree, rows, compiled, pace is None)
    last: FusedBatch | None = target.batch
    if last is None or last.kind != kind or last.capacity < capacity or not last.is_finished:
        target.batch = last = None  # gives its memory back first
        last = FusedBatch(target, draft, rule, tree, rows, -(-capacity // ROOM) * ROOM, compiled, pace)
        last.kind, target.batch = kind, last
    last.pace = pace if last.tree.size > 1 else None
    return last


class FusedBatch:
    """Requests in the rows of Resident; the interface of Batch."""

    kind: tuple[Any, ...] = ()  # what `reopen` knows it by

    def __init__(
        self,
        target: Any,  # HFModel
        draft: Any,  # HFModel, HeadModel of the target, or None
        rule: str,
        tree: Tree,
        size: int,
        capacity: int,
        compiled: bool = False,
        pace: Pace | None = None,
    ) -> None:
        """`tree`: guesses of a step; with a `pace`, which says step by step how deep they go, the most of them."""
        self.tree = tree if draft is not None else Tree.chain(0)
        self.pace = pace if self.tree.size > 1 else None
        self.capacity = capacity
        # a text that has ended is noticed while one more step is in flight
        capacity += self.tree.size + self.tree.depth[-1] + 1
        self.resident = Resident(target, draft, rule, self.tree, size, capacity, compiled)
        self.state, self.device = self.resident.state, self.resident.device
        self.vocabulary = target.vocabulary
        self.requests: list[Request | None] = [None] * size
        self.samplings = [Sampling()] * size
        self._new: dict[int, Request] = {}  # by row: those whose prompts are still to be read
        self._waiting: list[_Reading] = []
        self._said: list[tuple[Request, list[Piece]]] = []  # read before its turn
        self._failed: Exception | None = None  # why a text could not go on
        self._spoiled: set[int] = set()  # rows that a text may have left NaN in, which no mask hides
        self._missed = False  # whether the drafter did not see the last step
        self._mark = 0.0  # when the last step was read

    def add(self, requests: Sequence[Request]) -> None:
        """Requests with one prompt; prompts of all that have come are read before the next step, together."""
        if len(requests) > self.room:
            raise DraftproofError(f"the batch has room for {self.room} more texts, not {len(requests)}: step first")
        rows = [row for row, request in enumerate(self.requests) if request is None][: len(requests)]
        for row, request in zip(rows, requests, strict=True):
            self.requests[row] = self._new[row] = request

    def __contains__(self, request: Request) -> bool:
        return request in self.requests

    @property
    def room(self) -> int:
        """How many more texts fit."""
        return sum(request is None for request in self.requests)

    def cancel(self, request: Request) -> None:
        """Give a text up; what it has said so far stays in it."""
        request.finish = "cancelled"
        row = self.requests.index(request)
        self._spoiled.add(row)  # its prompt may have been read in a step that raised
        self._free(row)

    @property
    def is_finished(self) -> bool:
        return not any(self.requests) and not self._waiting and not self._said

    def step(self) -> list[tuple[Request, list[Piece]]]:
        """Launch a step, and hand out what the one before it said."""
        if not self._waiting:
            self._mark = time.perf_counter()
        joins = bool(self._new)
        if joins:
            self._join()
        if not self._goes_on():
            self._catch_up()
        if any(self.requests):
            self._waiting.append(self._launch(joins))
        # one step stays in flight, so that the device never waits for the host
        if len(self._waiting) > 1 or (self._waiting and not any(self.requests)):
            self._read(self._waiting.pop(0))
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error
        said, self._said = self._said, []
        return said

    def _goes_on(self) -> bool:
        """Whether some text is sure to need another step. Else what is in flight is read first: the device waits for
        the host, but not as long as a step in vain would take."""
        for request in self.requests:
            if request is not None:
                coming = sum(reading.tree.depth[-1] + 1 for reading in self._waiting if request in reading.requests)
                if request.depth >= coming:
                    return True
        return False

    @torch.no_grad()
    def _join(self) -> None:
        """Read the prompts of the new rows, each prompt once, and set what the step reads beside them."""
        requests = self._new
        texts: dict[Sequence[int], list[int]] = {}
        for row, request in requests.items():
            texts.setdefault(request.prompt, []).append(row)
        for row in self._spoiled & requests.keys():
            for session in self.resident.sessions:
                session.cache.clear(row)
            self._spoiled.remove(row)
        self.resident.read((rows[0], text) for text, rows in texts.items())
        same = [(rows[0], other) for rows in texts.values() for other in rows[1:]]
        if same:
            sources, targets = self._send(same).unbind(1)
            self.state.text[targets] = self.state.text[sources]
            for session in self.resident.sessions:
                session.copy(sources, targets, max(map(len, texts)) - 1)  # a step reads the last token
        index = self._send(list(requests))
        facts = [(len(one.prompt) - 1, 0, len(one.prompt) + one.depth, *one.member) for one in requests.values()]
        for kept, new in zip(self.state[1:], self._send(facts).unbind(1), strict=True):
            kept[index] = new
        self._control(requests, index)
        self._new = {}  # not before: if any of this raises, such as for want of memory, all is done anew

    def _send(self, values: Sequence[Any]) -> torch.Tensor:
        """Whole numbers for the device; the host does not wait until they are there."""
        return torch.tensor(values, dtype=torch.int64).to(self.device, non_blocking=True)

    def _control(self, requests: Mapping[int, Request], index: torch.Tensor) -> None:
        """Controls of new rows: nothing to do where they are those of the rows' last texts, but to count anew."""
        asked = [requests[row].sampling if row in requests else old for row, old in enumerate(self.samplings)]
        controls = self.resident.controls
        if controls is None or asked != self.samplings:
            self._set_controls(asked)
        elif controls.seen is not None and controls.made is not None:
            ids = self.state.text[index, 1:]
            known = torch.arange(ids.shape[1], device=self.device) <= self.state.base[index, None]
            counts = torch.zeros(len(index), self.vocabulary, dtype=controls.seen.dtype, device=self.device)
            controls.seen[index] = counts.scatter_add_(1, ids, known.to(counts.dtype))
            controls.made.index_fill_(0, index, 0)  # assigning a number would make the device wait

    def _set_controls(self, samplings: list[Sampling]) -> None:
        """Controls of all rows; steps are recorded anew only if what they read has moved or changed in kind."""
        contexts = None
        if any(sampling.reads_history for sampling in samplings):
            self._catch_up()  # penalties are counted anew: every token must be there
            texts = [(one.prompt, tuple(one.tokens)) if one else ((), ()) for one in self.requests]
            contexts = [Context(*text) for text in texts]
        fresh = Controls.of(samplings, self.tree.size, self.vocabulary, "cpu", contexts)
        old = self.resident.controls
        same = old is not None and all(
            (a.shape == b.shape if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b)
            for a, b in zip(old, fresh, strict=True)
        )
        if old is not None and same:
            for kept, new in zip(old, fresh, strict=True):
                if isinstance(kept, torch.Tensor) and isinstance(new, torch.Tensor):
                    kept.copy_(new, non_blocking=True)
        else:
            there = (part.to(self.device) if isinstance(part, torch.Tensor) else part for part in fresh)
            self.resident.controls = Controls._make(there)
        self.samplings = samplings

    def _launch(self, joins: bool) -> _Reading:
        tree = self.tree if self.pace is None else self.tree.cut(self.pace.length)
        if tree.size > 1 and self._missed:
            self._remind()
        self._missed = tree.size == 1
        made = self.resident.run(tree).to_host()
        done: Any = None
        if self.device.type == "cuda":
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        return _Reading(list(self.requests), tree, made, done, joins)

    @torch.no_grad()
    def _remind(self) -> None:
        """The drafter reads what was written without it."""
        self._catch_up()
        texts = [(row, (*one.prompt, *one.tokens)) for row, one in enumerate(self.requests) if one is not None]
        self.resident.read(texts, again=True)

    def _catch_up(self) -> None:
        """Read every step that is in flight."""
        while self._waiting:
            self._read(self._waiting.pop(0))

    def _read(self, reading: _Reading) -> None:
        """Note what a finished step said; rows that have ended meanwhile are freed.

        A text that cannot go on has failed. The complaint waits for the end of the step: others have gone on.
        """
        if reading.done is not None:
            reading.done.synchronize()
        seconds = self._seconds(reading)
        tokens, accepted, fault = (made.tolist() for made in reading.made[:3])
        wrote, guesses, depth = [], reading.tree.size - 1, reading.tree.depth[-1]
        for row, request in enumerate(reading.requests):
            if request is None or request.finish:
                continue
            if fault[row] & Fault.TARGET:
                self._failed = DraftproofError(LOST)
                request.fail(self._failed)
                self._spoiled.add(row)
                self._free(row)
                continue
            emitted = tuple(token for token in tokens[row] if token >= 0)
            made = Step(emitted, guesses, depth, accepted[row], reached=(), cost=(), seconds=seconds)
            self._said.append((request, request.absorb(made)))
            wrote.append(accepted[row])
            if self.pace is not None:
                request.trace.shapes[name(reading.tree)] += 1
            if request.finish and self.requests[row] is request:
                self._free(row)
        if self.pace is not None and wrote:  # all texts may have ended while the step was in flight
            self.pace.learn(depth, wrote, seconds)

    def _seconds(self, reading: _Reading) -> dict[str, float]:
        """Phases by the device's clock; what else went by was prompts being read, or the host being late."""
        clock = reading.made.clock.tolist()
        seconds = {phase: (clock[i + 1] - clock[i]) / 1e9 for i, phase in enumerate(PHASES)}
        now = time.perf_counter()
        rest, self._mark = max(now - self._mark - sum(seconds.values()), 0.0), now
        return {"prompt": rest * reading.joins, **seconds, "overhead": rest * (not reading.joins)}

    def _free(self, row: int) -> None:
        """The device is not told: a write in between steps would make it wait for the host."""
        if any(reading.requests[row] is self.requests[row] for reading in self._waiting):
            self._spoiled.add(row)  # a step in flight reads on after the end, and nobody will look at its faults
        self.requests[row] = None
        self._new.pop(row, None)


class _Reading(NamedTuple):
    """A step in flight: who it was for, what it leaves on the host, and when that is there."""

    requests: list[Request | None]
    tree: Tree
    made: Made
    done: Any  # a CUDA event, or None
    joins: bool  # whether prompts were read before it
