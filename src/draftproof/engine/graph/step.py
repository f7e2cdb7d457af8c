"""The device's half of the fused step: drafting, target call, verification and commit, one CUDA graph for each tree.

Every number that a step needs (lengths, last tokens, names of the noise) lives on the device, and so does the clock
that says where its time went. On a CPU the same step runs eagerly.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from draftproof import kernels
from draftproof.draft import Tree
from draftproof.engine.graph.capture import Reader, record
from draftproof.kernels import Controls, Names, Rule, Summary
from draftproof.models.drafters.head import HeadModel
from draftproof.models.static.head import StaticHead
from draftproof.models.static.packing import packs
from draftproof.models.static.session import StaticSession
from draftproof.models.static.tree_calls import TreeCalls

# of chains, on which traversal is block verification; it alone takes trees
RULES = {"token": Rule.TOKEN, "block": Rule.BLOCK, "traversal": Rule.BLOCK}
PHASES = ("draft", "target", "verify")


class State(NamedTuple):
    """What a step reads and writes on the device, a row each."""

    text: torch.Tensor  # [B, S] token t in slot t + 1; slot 0 stays 0
    base: torch.Tensor  # [B] position of the last committed token
    step: torch.Tensor  # [B]
    limit: torch.Tensor  # [B] where base stays at the latest: a row goes on until another text is put there
    seed: torch.Tensor  # [B]
    request: torch.Tensor  # [B]


class Made(NamedTuple):
    """What a step leaves for the host."""

    tokens: torch.Tensor  # [B, D + 1] emitted, then -1
    accepted: torch.Tensor  # [B]
    fault: torch.Tensor  # [B]
    clock: torch.Tensor  # [4] nanoseconds: begin, drafted, read by the target, done

    def to_host(self) -> Made:
        """Copies that are there once the device has come so far."""
        return Made(*(part.to("cpu", non_blocking=True) for part in self))


class Resident:
    """Rows of a target's and a drafter's static session, and the steps on them."""

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
        self.target = StaticSession(target, size, capacity, compiled, getattr(draft, "taps", ()))
        self.drafter: StaticSession | StaticHead | None = None
        if isinstance(draft, HeadModel):
            self.drafter = StaticHead(draft, self.target, largest.depth[-1], compiled, len(largest.inner))
        elif draft is not None:
            self.drafter = StaticSession(draft, size, capacity, compiled)
        device = self.device = target.network.device
        number = RULES.get(rule, Rule.TOKEN)  # rules without a kernel come here only where nothing is guessed
        self.rule = torch.full((size,), number, dtype=torch.int32, device=device)
        shapes = ((size, capacity + 2), *((size,),) * 5)
        self.state = State(*(torch.zeros(shape, dtype=torch.int64, device=device) for shape in shapes))
        self._controls: Controls | None = None
        self._calls: dict[Tree, TreeCalls] = {}
        self._recorded: dict[Tree, tuple[Any, Made]] = {}
        how = partial(record, pool=torch.cuda.graph_pool_handle()) if device.type == "cuda" else None
        self.readers = [Reader(session, how) for session in self.sessions]

    @property
    def sessions(self) -> list[StaticSession | StaticHead]:
        return [self.target] if self.drafter is None else [self.target, self.drafter]

    def read(self, texts: Iterable[tuple[int, Sequence[int]]], again: bool = False) -> None:
        """Read texts into rows; `again`: the drafter alone does, as steps were made without it."""
        for pack in packs(texts):
            there = pack.to(self.device, non_blocking=True)
            ids, rows, positions = there
            self.state.text[rows, positions + 1] = ids
            for reader in self.readers[1:] if again else self.readers:
                reader.read(there)

    @property
    def controls(self) -> Controls | None:
        return self._controls

    @controls.setter
    def controls(self, controls: Controls) -> None:
        """Other memory, or controls of another kind: what was recorded does not know them."""
        self._controls = controls
        self._recorded.clear()

    def run(self, tree: Tree) -> Made:
        """Start a step with these guesses; what is returned is the next step's too, on a GPU."""
        if not tree.is_chain and tree not in self._calls:
            self._calls[tree] = TreeCalls.of(tree, self.device)  # here, as no recording may bring numbers to the device
        if self.device.type != "cuda":
            with torch.no_grad():
                return self._body(tree)
        if tree not in self._recorded:
            self._recorded[tree] = self._record(tree)
        graph, made = self._recorded[tree]
        graph.replay()
        return made

    def _body(self, tree: Tree) -> Made:
        """One step on the device."""
        state, controls = self.state, self._controls
        assert controls is not None
        names = Names(state.seed, state.request, state.step)
        clock = torch.zeros(len(PHASES) + 1, dtype=torch.int64, device=self.device)
        _stamp(clock, 0)
        step = self._chain if tree.is_chain else self._tree
        out = step(tree, controls, names, clock)
        self._commit(out.tokens, out.accepted.to(torch.int64))
        _stamp(clock, 3)
        return Made(out.tokens, out.accepted, out.fault, clock)

    def _chain(self, tree: Tree, controls: Controls, names: Names, clock: torch.Tensor) -> kernels.Emitted:
        state, length = self.state, tree.size - 1
        tokens, draft_logits, summary = self._guess(length, controls, names)
        _stamp(clock, 1)
        ids = torch.cat([state.text.gather(1, state.base[:, None] + 1), tokens], dim=1)
        logits = self.target.forward(ids, state.base, keep=length + 1)
        _stamp(clock, 2)
        return kernels.verify(logits, draft_logits, tokens, controls, self.rule, names, drafted=summary)

    def _tree(self, tree: Tree, controls: Controls, names: Names, clock: torch.Tensor) -> kernels.Walked:
        state, calls = self.state, self._calls[tree]
        tokens, draft_logits, summary = self._branch(tree, controls, names)
        _stamp(clock, 1)
        logits = self.target.branch(tokens, state.base, calls.target)
        _stamp(clock, 2)
        out = kernels.traverse(logits, draft_logits, tokens, tree, controls, names, drafted=summary)
        for session in self.sessions:
            session.follow(state.base, out.path, out.accepted.to(torch.int64))
        return out

    def _branch(
        self, tree: Tree, controls: Controls, names: Names
    ) -> tuple[torch.Tensor, torch.Tensor, Summary | None]:
        """As `_guess`, of a tree: tokens [B, N] with node 0's, and logits [B, M, V] after the nodes with children."""
        state, drafter = self.state, self.drafter
        assert drafter is not None
        root = state.text.gather(1, state.base[:, None] + 1)
        tokens = torch.nn.functional.pad(root, (0, tree.size - 1), value=-1)
        kept = Summary.empty(len(root), len(tree.inner), self.device) if self.device.type == "cuda" else None
        rows: list[torch.Tensor] = []
        for call in self._calls[tree].drafter:
            if not rows:
                rows.append(drafter.start(state.text, state.base)[:, None])
            else:
                rows.append(drafter.branch(tokens, state.base, call))
            column = slice(call.first, call.first + len(call.nodes))
            some = None if kept is None else kept.at(column)
            kernels.guess(rows[-1], call.nodes, tree, tokens, controls, names, summary=some)
        return tokens, torch.cat(rows, dim=1), kept

    def _guess(
        self, length: int, controls: Controls, names: Names
    ) -> tuple[torch.Tensor, torch.Tensor | None, Summary | None]:
        """Tokens [B, K], the logits [B, K, V] they were drawn from, and what is known of these."""
        state, size = self.state, len(self.state.base)
        tokens = torch.full((size, length), -1, dtype=torch.int64, device=self.device)
        if self.drafter is None or not length:
            return tokens, None, None
        rows, kept = [self.drafter.start(state.text, state.base)], None
        if self.device.type == "cuda":
            crest = kernels.crest_pays(size, length + 1, rows[0].shape[-1])
            kept = Summary.empty(size, length, self.device, crest)
        for k in range(length):
            column = None if kept is None else kept.at(slice(k, k + 1))
            tokens[:, k], _ = kernels.sample(
                rows[k], controls, names, node=k, index=k + 1, tokens=tokens[:, :k], summary=column
            )
            if k + 1 < length:
                rows.append(self.drafter.go_on(tokens[:, k], state.base, k + 1))
        return tokens, torch.stack(rows, dim=1), kept

    def _commit(self, emitted: torch.Tensor, accepted: torch.Tensor) -> None:
        state, controls = self.state, self._controls
        assert controls is not None
        # what follows the emitted tokens, and the text of a row that has ended, is overwritten before it is read
        places = state.base[:, None] + torch.arange(2, emitted.shape[1] + 2, device=self.device)
        state.text.scatter_(1, places, emitted.clamp_min(0))
        state.base.copy_(torch.minimum(state.base + accepted + 1, state.limit))
        state.step.add_(1)
        for counts in (controls.seen, controls.made):
            if counts is not None:
                counts.scatter_add_(1, emitted.clamp_min(0), (emitted >= 0).to(counts.dtype))

    @torch.no_grad()
    def _record(self, tree: Tree) -> tuple[Any, Made]:
        """Capture the step. Warming up moves the state on, so it is put back."""
        controls = self._controls
        assert controls is not None
        moving = [*self.state, *(c for c in (controls.seen, controls.made) if c is not None)]
        saved = [tensor.clone() for tensor in moving]
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._body(tree)
        torch.cuda.current_stream().wait_stream(side)
        recorded = record(lambda: self._body(tree))
        for tensor, old in zip(moving, saved, strict=True):
            tensor.copy_(old)
        return recorded


def _stamp(clock: torch.Tensor, place: int) -> None:
    """The time, when the device has come so far; zero where its clock cannot be read."""
    if not clock.is_cuda:
        clock[place] = time.perf_counter_ns()
    elif kernels.available():
        from draftproof.kernels.lib.timer import now

        now[(1,)](clock[place:], num_warps=1)
