"""The step on the device: drafting, target call, verification and commit, one CUDA graph for each tree.

Every number that a step needs (lengths, last tokens, keys of the noise) lives on the device, and so does the clock that
says where its time went. On a CPU the same step runs eagerly.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch

from draftproof import kernels
from draftproof.draft import Tree
from draftproof.engine.graph.capture import PromptReader, Stopwatch, record
from draftproof.errors import first_line
from draftproof.kernels import ChainRule, Controls, Fault, NoiseKeys, Summary
from draftproof.kernels.acceptance import stop_law
from draftproof.models.base import taps
from draftproof.models.drafters.head import HeadModel
from draftproof.models.static.head import StaticHead
from draftproof.models.static.packing import packs
from draftproof.models.static.session import StaticSession
from draftproof.models.static.tree_calls import TreeCalls

# of chains, on which traversal is block verification; it alone takes trees
RULES = {"token": ChainRule.TOKEN, "block": ChainRule.BLOCK, "traversal": ChainRule.BLOCK}
PHASES = ("draft", "target", "verify")
NO_LAW = "the model returned non-finite scores (NaN or +inf): check the model's weights and dtype"  # of a drafter


class DeviceState(NamedTuple):
    """The state that a step reads and writes on the device, one entry per row."""

    text: torch.Tensor  # [B, S] token t in slot t + 1; slot 0 stays 0
    base: torch.Tensor  # [B] position of the last committed token
    step: torch.Tensor  # [B]
    limit: torch.Tensor  # [B] largest base: a finished row keeps stepping until another text joins it
    draft_end: torch.Tensor  # [B] draft tokens stay before this position
    seed: torch.Tensor  # [B]
    request: torch.Tensor  # [B]


class HostResult(NamedTuple):
    """The result of a step in Python numbers."""

    tokens: list[list[int]]  # [B, D + 1] emitted, then -1
    accepted: list[int]  # [B]
    fault: list[int]  # [B] kernels.Fault flags
    drafted: list[list[int]]  # [B, N - 1] the draft tokens, -1 where none was drawn
    stop: list[list[float]]  # [B, N] probability to stop at each node, given the draft tokens
    failure: str | None  # of a drafter that raised; one without a law is flagged in `fault`


class DeviceResult(NamedTuple):
    """The result of a step as tensors."""

    tokens: torch.Tensor
    accepted: torch.Tensor
    fault: torch.Tensor
    drafted: torch.Tensor
    stop: torch.Tensor
    clock: torch.Tensor  # [4] nanoseconds: begin, drafted, read by the target, done
    failure: str | None = None

    def to_host(self) -> DeviceResult:
        """Copy to the host without waiting; the values are valid once the device has finished the step."""
        tensors = self._asdict().items()
        return self._replace(**{name: part.to("cpu", non_blocking=True) for name, part in tensors if name != "failure"})

    def read(self) -> HostResult:
        """Convert to Python numbers, after the copies are complete."""
        tokens, accepted, fault, drafted, stop = (part.tolist() for part in self[:5])
        return HostResult(tokens, accepted, fault, drafted, stop, self.failure)


class Drafted(NamedTuple):
    """The draft of a step on the device."""

    tree: Tree
    tokens: torch.Tensor  # [B, N - 1], -1 where none was drawn
    logits: torch.Tensor | None  # [B, M, V] of the drafter, after the nodes with children
    summary: Summary | None  # kernels' summary of those rows
    fault: torch.Tensor  # [B]
    failure: str | None = None  # of a drafter that raised


class DrafterError(Exception):
    """The drafter raised; the text goes on without it."""


@contextmanager
def drafter_errors() -> Iterator[None]:
    """Turn errors of a drafter in this block into DrafterError."""
    try:
        yield
    except Exception as error:
        raise DrafterError(first_line(error)) from error


class DeviceStep:
    """Static sessions of target and drafter, and the captured steps on their rows."""

    def __init__(
        self,
        target: Any,  # HFModel
        draft: Any,  # HFModel, HeadModel of the target, or None
        rule: str,
        largest: Tree,  # of guesses of a step
        size: int,  # rows
        capacity: int,
        compiled: bool = False,
    ) -> None:
        self.target = StaticSession(target, size, capacity, compiled, taps(draft))
        self.drafter: StaticSession | StaticHead | None = None
        if isinstance(draft, HeadModel):
            self.drafter = StaticHead(draft, self.target, largest.depth[-1], compiled, len(largest.inner))
        elif draft is not None:
            self.drafter = StaticSession(draft, size, capacity, compiled)
        self.largest = largest
        device = self.device = target.network.device
        self.by_kernels = device.type == "cuda"  # on a CPU the reference verifies
        number = RULES.get(rule, ChainRule.TOKEN)  # rules without a kernel get here only without a draft
        self.rule = torch.full((size,), number, dtype=torch.int32, device=device)
        shapes = ((size, capacity + 2), *((size,),) * (len(DeviceState._fields) - 1))
        self.state = DeviceState(*(torch.zeros(shape, dtype=torch.int64, device=device) for shape in shapes))
        self._levels = torch.arange(1, largest.size, device=device)
        self._controls: Controls | None = None
        self._calls: dict[Tree, TreeCalls] = {}
        self._recorded: dict[Tree, tuple[Any, DeviceResult]] = {}
        how = partial(record, pool=torch.cuda.graph_pool_handle()) if device.type == "cuda" else None
        self.start = Stopwatch()
        self.readers = [PromptReader(session, how, self.start) for session in self.sessions]

    @property
    def sessions(self) -> list[StaticSession | StaticHead]:
        return [self.target] if self.drafter is None else [self.target, self.drafter]

    def read(self, texts: Iterable[tuple[int, Sequence[int]]], drafter_only: bool = False) -> None:
        """Prefill texts into rows, or into the drafter alone after steps that were made without it."""
        for pack in packs(texts):
            moved = pack.to(self.device, non_blocking=True)
            ids, rows, positions = moved
            self.state.text[rows, positions + 1] = ids
            for reader in self.readers[1:] if drafter_only else self.readers:
                reader.read(moved)

    @property
    def controls(self) -> Controls | None:
        return self._controls

    @controls.setter
    def controls(self, controls: Controls) -> None:
        """Set controls in other memory or of another kind, for which steps have to be captured again."""
        self._controls = controls
        self._recorded.clear()

    def run(self, tree: Tree) -> DeviceResult:
        """Start a step with this tree; on a GPU the next step writes into the same result."""
        if not tree.is_chain and tree not in self._calls:
            self._calls[tree] = TreeCalls.of(tree, self.device)  # here, as no recording may bring numbers to the device
        if self.device.type != "cuda":
            with torch.no_grad():
                return self._body(tree)
        if tree not in self._recorded:
            try:
                with self.start.running():
                    self._recorded[tree] = self._record(tree)
            except DrafterError as error:  # this step is made without the drafter
                return self.run(Tree.chain(0))._replace(failure=str(error))
        graph, result = self._recorded[tree]
        graph.replay()
        return result

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that drafting adds: slots of the target's cache, logits of both models, the drafter's cache.

        Noise takes none: kernels compute it where it is used.
        """
        if self.drafter is None:
            return {}
        cache, nodes = self.target.cache, self.largest.size
        logits = len(self.state.base) * (nodes - 1 + len(self.largest.inner)) * self.target.model.vocabulary
        slots = cache.bytes * nodes // (cache.capacity + 1)
        element = self.target.model.network.dtype.itemsize
        return {"slots": slots, "laws": logits * element, "noise": 0, "drafters": self.drafter.cache.bytes}

    def _body(self, tree: Tree) -> DeviceResult:
        """One step on the device."""
        state, controls = self.state, self._controls
        assert controls is not None
        noise = NoiseKeys(state.seed, state.request, state.step)
        clock = torch.zeros(len(PHASES) + 1, dtype=torch.int64, device=self.device)
        _stamp(clock, 0)
        drafted = self._draft_chain(tree, controls, noise) if tree.is_chain else self._draft_tree(tree, controls, noise)
        _stamp(clock, 1)
        logits = self._target_logits(drafted)
        _stamp(clock, 2)
        verify = self._verify_chain if drafted.tree.is_chain else self._verify_tree
        out, stop = verify(drafted, logits, controls, noise)
        self._commit(out.tokens, out.accepted.to(torch.int64))
        _stamp(clock, 3)
        fault = out.fault | drafted.fault
        return DeviceResult(out.tokens, out.accepted, fault, drafted.tokens, stop, clock, drafted.failure)

    def _target_logits(self, drafted: Drafted) -> torch.Tensor:
        """The target's logits [B, N, V] after each node."""
        root = self.state.text.gather(1, self.state.base[:, None] + 1)
        tokens = torch.cat([root, drafted.tokens], dim=1)
        if drafted.tree.is_chain:
            # rows after a token that was not drawn are never used, but the input must be valid
            return self.target.forward(tokens.clamp_min(0), self.state.base, keep=drafted.tree.size)
        return self.target.branch(tokens, self.state.base, self._calls[drafted.tree].target)

    def _verify_chain(
        self, drafted: Drafted, logits: torch.Tensor, controls: Controls, noise: NoiseKeys
    ) -> tuple[kernels.Emitted, torch.Tensor]:
        """The outcome, and the law [B, N] of the node at which verification stops."""
        tokens, summary = drafted.tokens, drafted.summary
        batch, nodes, size = logits.shape
        space = None if summary is None else kernels.workspace(batch, nodes, size, self.device)
        out = kernels.verify(
            logits, drafted.logits, tokens, controls, self.rule, noise, drafted=summary, workspace=space
        )
        if drafted.logits is None:
            return out, torch.ones(len(tokens), 1, device=self.device)
        laws = None if space is None else space.summary
        return out, stop_law(logits, drafted.logits, tokens, controls, self.rule, laws=laws, drafted=summary)

    def _verify_tree(
        self, drafted: Drafted, logits: torch.Tensor, controls: Controls, noise: NoiseKeys
    ) -> tuple[kernels.Walked, torch.Tensor]:
        """The outcome, and the law [B, N] of the node at which verification stops."""
        assert drafted.logits is not None
        nodes = torch.nn.functional.pad(drafted.tokens, (1, 0))
        out = kernels.traverse(logits, drafted.logits, nodes, drafted.tree, controls, noise, drafted=drafted.summary)
        for session in self.sessions:
            session.follow(self.state.base, out.path, out.accepted.to(torch.int64))
        return out, out.stop

    def _draft_tree(self, tree: Tree, controls: Controls, noise: NoiseKeys) -> Drafted:
        """Draft a tree level by level; the drafter runs on the nodes that have children."""
        state, drafter = self.state, self.drafter
        assert drafter is not None
        root = state.text.gather(1, state.base[:, None] + 1)
        tokens = torch.nn.functional.pad(root, (0, tree.size - 1), value=-1)
        kept = Summary.empty(len(root), len(tree.inner), self.device) if self.by_kernels else None
        rows: list[torch.Tensor] = []
        failure = None
        for call in self._calls[tree].drafter:
            try:
                with drafter_errors():
                    if not rows:
                        rows.append(drafter.start(state.text, state.base)[:, None])
                    else:
                        rows.append(drafter.branch(tokens, state.base, call))
            except DrafterError as error:
                if self.device.type == "cuda":
                    raise  # a graph of half a draft would be replayed for ever
                failure = str(error)
                missing = len(tree.inner) - call.first
                rows.append(torch.zeros(len(root), missing, self.target.model.vocabulary))  # nothing is drawn there
                break
            column = slice(call.first, call.first + len(call.nodes))
            some = None if kept is None else kept.at(column)
            kernels.guess(rows[-1], call.nodes, tree, tokens, controls, noise, summary=some)
        calls = self._calls[tree]
        drafted = torch.where(calls.target.depth[1:] <= self._room(), tokens[:, 1:], -1)
        return Drafted(tree, drafted, torch.cat(rows, dim=1), kept, torch.zeros_like(self.rule), failure)

    def _draft_chain(self, tree: Tree, controls: Controls, noise: NoiseKeys) -> Drafted:
        """Draft a chain token by token; if the drafter raises, what was drawn before stays in the draft."""
        state, size, length = self.state, len(self.state.base), tree.size - 1
        tokens = torch.full((size, length), -1, dtype=torch.int64, device=self.device)
        nothing = torch.zeros_like(self.rule)
        if self.drafter is None or not length:
            return Drafted(Tree.chain(0), tokens[:, :0], None, None, nothing)
        rows: list[torch.Tensor] = []
        kept = None
        for k in range(length):
            try:
                with drafter_errors():
                    if not rows:
                        rows.append(self.drafter.start(state.text, state.base))
                    else:
                        rows.append(self.drafter.go_on(tokens[:, k - 1], state.base, k))
            except DrafterError as error:
                if self.device.type == "cuda":
                    raise  # else a graph of half a draft would be captured
                return self._half(tokens[:, :k], rows, str(error))
            if kept is None and self.by_kernels:
                crest = kernels.crest_pays(size, length + 1, rows[0].shape[-1])
                kept = Summary.empty(size, length, self.device, crest)
            column = None if kept is None else kept.at(slice(k, k + 1))
            drawn, _ = kernels.sample(
                rows[k], controls, noise, node=k, index=k + 1, tokens=tokens[:, :k], summary=column
            )
            if kept is None:  # for a row without a law the kernels draw token 0, the reference any number
                drawn = drawn.clamp(0, rows[k].shape[-1] - 1)
            tokens[:, k] = drawn
        logits = torch.stack(rows, dim=1)
        wanted = self._levels[:length] <= self._room()
        sound = _sound(logits, kept) | ~wanted
        tokens = torch.where(wanted & (sound.cumprod(1) > 0), tokens, -1)  # nothing is drawn after a row without a law
        fault = (~sound).any(1).to(torch.int32) * int(Fault.DRAFT)
        return Drafted(tree, tokens, logits, kept, fault)

    def _room(self) -> torch.Tensor:
        """How deep to draft [B, 1]."""
        return (self.state.draft_end - self.state.base - 1)[:, None]

    def _half(self, tokens: torch.Tensor, rows: list[torch.Tensor], failure: str) -> Drafted:
        """The chain that was drawn before the drafter raised."""
        logits = torch.stack(rows, dim=1) if rows else None
        tokens = torch.where(self._levels[: len(rows)] <= self._room(), tokens, -1)
        return Drafted(Tree.chain(len(rows)), tokens, logits, None, torch.zeros_like(self.rule), failure)

    def _commit(self, emitted: torch.Tensor, accepted: torch.Tensor) -> None:
        state, controls = self.state, self._controls
        assert controls is not None
        # slots after the emitted tokens, and rows that have ended, are overwritten before they are read
        places = state.base[:, None] + torch.arange(2, emitted.shape[1] + 2, device=self.device)
        state.text.scatter_(1, places, emitted.clamp_min(0))
        state.base.copy_(torch.minimum(state.base + accepted + 1, state.limit))
        state.step.add_(1)
        for counts in (controls.seen, controls.made):
            if counts is not None:
                counts.scatter_add_(1, emitted.clamp_min(0), (emitted >= 0).to(counts.dtype))

    @torch.no_grad()
    def _record(self, tree: Tree) -> tuple[Any, DeviceResult]:
        """Capture the step; the warm-up changes the state, so it is restored."""
        controls = self._controls
        assert controls is not None
        moving = [*self.state, *(c for c in (controls.seen, controls.made) if c is not None)]
        saved = [tensor.clone() for tensor in moving]
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(side):
                for _ in range(2):
                    self._body(tree)
            torch.cuda.current_stream().wait_stream(side)
            return record(lambda: self._body(tree))
        finally:  # also where memory was short, or the drafter raised
            torch.cuda.current_stream().wait_stream(side)
            for tensor, old in zip(moving, saved, strict=True):
                tensor.copy_(old)


def _sound(logits: torch.Tensor, summary: Summary | None) -> torch.Tensor:
    """Which rows [B, K] of logits [B, K, V] have a law."""
    return (logits < torch.inf).all(-1) if summary is None else summary.scale > 0


def _stamp(clock: torch.Tensor, place: int) -> None:
    """Record the time when the device gets here; zero where its clock cannot be read."""
    if not clock.is_cuda:
        clock[place] = time.perf_counter_ns()
    elif kernels.available(clock.device):
        from draftproof.kernels.lib.timer import stamp

        stamp(clock, place)  # type: ignore[no-untyped-call]
