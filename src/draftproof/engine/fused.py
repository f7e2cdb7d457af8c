"""Chains without the host: drafting, target call, verification and commit as one replayed CUDA graph.

Every number that a step needs (lengths, last tokens, names of the noise) lives on the device. The host replays the
graph and reads the tokens of the step before, so it never makes the device wait. On a CPU the same step runs eagerly;
its tokens are those of the general engine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from draftproof import kernels
from draftproof.couple import COUPLINGS
from draftproof.draft import Tree
from draftproof.engine.request import Request
from draftproof.engine.text import Piece
from draftproof.engine.trace import Step
from draftproof.errors import DraftproofError
from draftproof.kernels import Controls, Names, Rule, Summary
from draftproof.kernels.types import Fault, unsupported
from draftproof.models.head import HeadModel
from draftproof.models.hf import HFModel
from draftproof.models.session import Model
from draftproof.models.static import StaticSession, groups
from draftproof.models.static_head import StaticHead
from draftproof.sampling import Context, Sampling

RULES = {"token": Rule.TOKEN, "block": Rule.BLOCK}
# Where the host's time goes: starting to read prompts, waiting for the device, and everything else. The device draws,
# calls the target and verifies in one piece, while the host does what the two others say.
PHASES = ("prompt", "target", "overhead")


def fits(
    target: Model, drafts: Sequence[Model], rule: str, shape: object, samplings: tuple[Sampling, Sampling]
) -> bool:
    """Whether the fused step can do what is asked; the general engine does everything else."""
    return (
        isinstance(target, HFModel)
        and target.network.device.type == "cuda"
        and len(drafts) <= 1
        and all(isinstance(draft, HFModel) or _is_head(draft, target) for draft in drafts)
        and (rule in RULES or not (drafts or rule in COUPLINGS))  # a coupling draws with noise of its own
        and isinstance(shape, Tree)
        and shape.is_chain
        and samplings[0] == samplings[1]
        and not unsupported(samplings[0])
    )


def _is_head(draft: Model, target: Model) -> bool:
    return isinstance(draft, HeadModel) and draft.target is target


class State(NamedTuple):
    """What a step reads and writes on the device, a row each."""

    text: torch.Tensor  # [B, S] token t in slot t + 1; slot 0 stays 0
    base: torch.Tensor  # [B] position of the last committed token
    step: torch.Tensor  # [B]
    active: torch.Tensor  # [B] 1 where a text is being written, else 0


class FusedBatch:
    """Requests in the rows of two static sessions; the interface of Batch."""

    def __init__(
        self,
        target: Any,  # HFModel
        draft: Any,  # HFModel, HeadModel of the target, or None
        rule: str,
        length: int,
        size: int,
        capacity: int,
        compiled: bool = False,
    ) -> None:
        self.length = length if draft is not None else 0
        capacity += 2 * (self.length + 1)  # a text that has ended is noticed while one more step is in flight
        self.target = StaticSession(target, size, capacity, compiled, getattr(draft, "taps", ()))
        self.drafter: StaticSession | StaticHead | None = None
        if isinstance(draft, HeadModel):
            self.drafter = StaticHead(draft, self.target, length, compiled)
        elif draft is not None:
            self.drafter = StaticSession(draft, size, capacity, compiled)
        self.vocabulary = target.vocabulary
        device = self.device = target.network.device
        self.rule = torch.full((size,), RULES.get(rule, Rule.TOKEN), dtype=torch.int32, device=device)
        shapes = ((size, capacity + 2), (size,), (size,), (size,))
        self.state = State(*(torch.zeros(shape, dtype=torch.int64, device=device) for shape in shapes))
        self.seed, self.request = (torch.zeros(size, dtype=torch.int64, device=device) for _ in range(2))
        self.requests: list[Request | None] = [None] * size
        self.controls: Controls | None = None
        self.samplings = [Sampling()] * size
        self._graph: torch.cuda.CUDAGraph | None = None
        self._made: tuple[torch.Tensor, ...] = ()
        self._new: dict[int, Request] = {}  # by row: those whose prompts are still to be read
        self._waiting: list[_Reading] = []
        self._said: list[tuple[Request, list[Piece]]] = []  # read before its turn
        self._spent = dict.fromkeys(PHASES, 0.0)  # seconds since the last reading
        self._mark = 0.0

    def add(self, requests: Sequence[Request]) -> None:
        """Requests with one prompt; prompts of all that have come are read before the next step, together."""
        if len(requests) > self.room:
            raise DraftproofError(f"the batch has room for {self.room} more texts, not {len(requests)}: step first")
        rows = [row for row, request in enumerate(self.requests) if request is None][: len(requests)]
        for row, request in zip(rows, requests, strict=True):
            self.requests[row] = self._new[row] = request

    @property
    def room(self) -> int:
        """How many more texts fit."""
        return sum(request is None for request in self.requests)

    def cancel(self, request: Request) -> None:
        """Give a text up; what it has said so far stays in it."""
        request.finish = "cancelled"
        self._free(self.requests.index(request))

    @property
    def is_finished(self) -> bool:
        return not any(self.requests) and not self._waiting and not self._said

    def step(self) -> list[tuple[Request, list[Piece]]]:
        """Launch a step, and hand out what the one before it said."""
        self._mark = time.perf_counter()
        if self._new:
            self._join()
            self._lap("prompt")
        if any(self.requests):
            self._waiting.append(self._launch())
        said, self._said = self._said, []
        # one step stays in flight, so that the device never waits for the host
        if len(self._waiting) > 1 or (self._waiting and not any(self.requests)):
            said += self._read(self._waiting.pop(0))
        self._lap("overhead")
        return said

    @torch.no_grad()
    def _join(self) -> None:
        """Read the prompts of the new rows, each prompt once, and set what the step reads beside them."""
        requests, self._new = self._new, {}
        texts: dict[Sequence[int], list[int]] = {}
        for row, request in requests.items():
            texts.setdefault(request.prompt, []).append(row)
        for some in groups(texts):
            width = len(some[0])
            first = self._send([texts[text][0] for text in some])
            self.state.text[first, 1 : width + 1] = self._send([[*text, *[0] * (width - len(text))] for text in some])
            for session in self._sessions:
                session.prefill(first, self.state.text[first, 1:width])  # a step reads the last token
        for text, (source, *others) in texts.items():
            if others:
                targets = self._send(others)
                self.state.text[targets] = self.state.text[source].clone()
                for session in self._sessions:
                    session.copy(source, targets, len(text) - 1)
        index = self._send(list(requests))
        facts = self._send([(len(one.prompt) - 1, 0, 1, *one.member) for one in requests.values()])
        for kept, new in zip((*self.state[1:], self.seed, self.request), facts.unbind(1), strict=True):
            kept[index] = new
        self._control(requests, index)

    @property
    def _sessions(self) -> list[StaticSession | StaticHead]:
        return [self.target] if self.drafter is None else [self.target, self.drafter]

    def _send(self, values: Sequence[Any]) -> torch.Tensor:
        """Whole numbers for the device; the host does not wait until they are there."""
        return torch.tensor(values, dtype=torch.int64).to(self.device, non_blocking=True)

    def _lap(self, phase: str) -> None:
        """Whose the time since the last call was."""
        now = time.perf_counter()
        self._spent[phase] += now - self._mark
        self._mark = now

    def _control(self, requests: Mapping[int, Request], index: torch.Tensor) -> None:
        """Controls of new rows: nothing to do where they are those of the rows' last texts, but to count anew."""
        asked = [requests[row].sampling if row in requests else old for row, old in enumerate(self.samplings)]
        if self.controls is None or asked != self.samplings:
            self.samplings = asked
            self._set_controls()
        elif self.controls.seen is not None and self.controls.made is not None:
            ids = self.state.text[index, 1:]
            known = torch.arange(ids.shape[1], device=self.device) <= self.state.base[index, None]
            counts = torch.zeros(len(index), self.vocabulary, dtype=self.controls.seen.dtype, device=self.device)
            self.controls.seen[index] = counts.scatter_add_(1, ids, known.to(counts.dtype))
            self.controls.made[index] = 0

    def _set_controls(self) -> None:
        """Controls of all rows; the graph is captured anew only if what it reads has moved or changed in kind."""
        contexts = None
        if any(sampling.reads_history for sampling in self.samplings):
            while self._waiting:  # penalties are counted anew: every token must be there
                self._said += self._read(self._waiting.pop(0))
            texts = [(one.prompt, tuple(one.tokens)) if one else ((), ()) for one in self.requests]
            contexts = [Context(*text) for text in texts]
        fresh = Controls.of(self.samplings, self.length + 1, self.vocabulary, "cpu", contexts)
        old = self.controls
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
            self.controls, self._graph = Controls._make(there), None

    def _body(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One step on the device: emitted tokens [B, K + 1], accepted [B], faults [B]."""
        state, controls = self.state, self.controls
        assert controls is not None
        names = Names(self.seed, self.request, state.step)
        size, count = len(state.base), self.length
        tokens = torch.full((size, count), -1, dtype=torch.int64, device=self.device)
        draft_logits, summary = None, None
        if self.drafter is not None:
            rows = []
            kept = Summary.empty(size, count, self.device) if self.device.type == "cuda" else None
            logits = self.drafter.start(state.text, state.base)
            for k in range(count):
                column = None if kept is None else Summary(*(part[:, k : k + 1] for part in kept))
                drawn, _ = kernels.sample(
                    logits, controls, names, node=k, index=k + 1, tokens=tokens[:, :k], summary=column
                )
                tokens[:, k] = drawn
                rows.append(logits)
                if k + 1 < count:
                    logits = self.drafter.go_on(drawn, state.base, k + 1)
            draft_logits, summary = torch.stack(rows, dim=1), kept
        ids = torch.cat([state.text.gather(1, state.base[:, None] + 1), tokens], dim=1)
        logits = self.target.forward(ids, state.base, keep=count + 1)
        out = kernels.verify(logits, draft_logits, tokens, controls, self.rule, names, drafted=summary)
        self._commit(out.tokens, out.accepted.to(torch.int64))
        return out.tokens, out.accepted, out.fault

    def _commit(self, emitted: torch.Tensor, accepted: torch.Tensor) -> None:
        state, controls = self.state, self.controls
        assert controls is not None
        # what follows the emitted tokens, and the text of a row that has ended, is overwritten before it is read
        places = state.base[:, None] + torch.arange(2, self.length + 3, device=self.device)
        state.text.scatter_(1, places, emitted.clamp_min(0))
        state.base.add_((accepted + 1) * state.active)
        state.step.add_(state.active)
        for counts in (controls.seen, controls.made):
            if counts is not None:
                counts.scatter_add_(1, emitted.clamp_min(0), (emitted >= 0).to(counts.dtype))

    def _launch(self) -> _Reading:
        if self.device.type != "cuda":
            with torch.no_grad():
                made = self._body()
            self._lap("target")
            return _Reading(list(self.requests), made, None)
        if self._graph is None:
            self._capture()
        assert self._graph is not None
        self._graph.replay()
        host = tuple(made.to("cpu", non_blocking=True) for made in self._made)
        done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        return _Reading(list(self.requests), host, done)

    @torch.no_grad()
    def _capture(self) -> None:
        """Record the step. Warming up moves the state on, so it is put back."""
        controls = self.controls
        assert controls is not None
        moving = [*self.state, *(c for c in (controls.seen, controls.made) if c is not None)]
        saved = [tensor.clone() for tensor in moving]
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._body()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        # cuBLAS keeps its scratch memory for whoever captures next, and compilers free it: this graph has its own
        torch._C._cuda_clearCublasWorkspaces()
        with torch.cuda.graph(self._graph):
            self._made = self._body()
        torch._C._cuda_clearCublasWorkspaces()
        for tensor, old in zip(moving, saved, strict=True):
            tensor.copy_(old)

    def _read(self, reading: _Reading) -> list[tuple[Request, list[Piece]]]:
        """What a finished step said; rows that have ended meanwhile are freed."""
        if reading.done is not None:
            self._lap("overhead")
            reading.done.synchronize()
            self._lap("target")
        seconds, self._spent = self._spent, dict.fromkeys(PHASES, 0.0)
        tokens, accepted, fault = (made.tolist() for made in reading.made)
        said = []
        for row, request in enumerate(reading.requests):
            if request is None or request.finish:
                continue
            if fault[row] & Fault.TARGET:
                raise DraftproofError("the model returned non-finite scores, or no token is allowed: check its weights")
            emitted = tuple(token for token in tokens[row] if token >= 0)
            made = Step(emitted, self.length, self.length, accepted[row], reached=(), cost=(), seconds=seconds)
            said.append((request, request.absorb(made)))
            if request.finish and self.requests[row] is request:
                self._free(row)
        return said

    def _free(self, row: int) -> None:
        self.requests[row] = None
        self.state.active[row] = 0
        self._new.pop(row, None)


class _Reading(NamedTuple):
    """A step in flight: who it was for, its tensors on the host, and when they are there."""

    requests: list[Request | None]
    made: tuple[torch.Tensor, ...]
    done: Any  # a CUDA event, or None
