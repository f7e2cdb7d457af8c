"""A captured step may not bring anything from the host: what it looks up is made when the sessions are opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import draftproof as dp
from draftproof import Tree, kernels
from draftproof.engine.graph import step as resident
from draftproof.engine.graph.step import DeviceStep
from draftproof.kernels import Controls, Fault
from draftproof.models.drafters.head import HeadModel
from draftproof.models.hf import HFModel
from draftproof.models.llama.backends import megakernel, tables, triton_ops
from draftproof.models.llama.backends.tables import KernelTables
from draftproof.models.llama.block import LayerShape
from draftproof.models.llama.head import HeadConfig, HeadNetwork
from draftproof.models.static.head import StaticHead
from draftproof.models.static.session import StaticSession
from draftproof.models.static.tree_calls import TreeCalls
from draftproof.sampling import Context
from tests.support import tiny
from tests.support.layers import DEVICE, model
from tests.support.marks import INTERPRETED

pytestmark = pytest.mark.usefixtures("fast_interpreter")
ROWS, LENGTH, CAPACITY = 2, 3, 40
FROM_HOST = ("tensor", "as_tensor", "asarray", "from_numpy", "frombuffer")


class NothingFromHost(TorchDispatchMode):
    """Raises where an operation takes numbers of Python to the device, as capturing a CUDA graph would."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not func.name().startswith("aten::lift_fresh"), "a tensor was made from numbers of the host"
        assert not func.name().startswith("aten::_local_scalar_dense"), "the host waited for a number of the device"
        return func(*args, **(kwargs or {}))


@contextmanager
def capturing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What stands in for a CUDA graph that is being captured."""

    def refuse(*args: Any, **named: Any) -> None:
        raise AssertionError("a tensor was made from numbers of the host")

    with monkeypatch.context() as patch, NothingFromHost():
        for name in FROM_HOST:
            patch.setattr(torch, name, refuse)
        patch.setattr(torch.Tensor, "new_tensor", refuse)
        yield


def head(target: HFModel) -> HeadModel:
    """Of two layers: known entries run both, those of draft tokens the last one."""
    torch.manual_seed(5)
    network = HeadNetwork(HeadConfig(LayerShape(32, 4, 2, 16, 48), 2, (0, 1), 10000.0, tiny.VOCABULARY // 2))
    network.tokens.copy_(torch.arange(0, tiny.VOCABULARY, 2))
    return HeadModel(target, network.eval().requires_grad_(False))


def step(target: StaticSession, drafter: StaticHead | StaticSession, calls: TreeCalls) -> list[torch.Tensor]:
    """Every call of the layers that a step makes, for a chain and for a tree."""
    text = torch.arange(3, CAPACITY + 5, device=DEVICE).expand(ROWS, -1)
    base, tokens = text[:, 3], text[:, : len(calls.target.nodes)]
    out = [drafter.start(text, base), drafter.go_on(text[:, 0], base, 1), target.forward(text[:, :4], base, keep=4)]
    out.append(drafter.start(text, base))
    out += [drafter.branch(tokens, base, call) for call in calls.drafter[1:]]
    out.append(target.branch(tokens, base, calls.target))
    for session in (target, drafter):
        session.follow(base, tokens[:, 1:3], base * 0 + 1)
    return [logits.clone() for logits in out]


def prefill(*sessions: StaticSession | StaticHead) -> None:
    tokens = torch.arange(6, device=DEVICE)  # four of row 0, two of row 1
    for session in sessions:
        session.prefill(tokens, tokens // 4, tokens % 4)


def opened(kind: str, tree: Tree) -> tuple[StaticSession, StaticHead | StaticSession]:
    target = model("llama", 0)
    if kind == "head":
        drafts = head(target)
        session = StaticSession(target, ROWS, CAPACITY, taps=drafts.taps)
        return session, StaticHead(drafts, session, LENGTH, inner=len(tree.inner))
    other = model("llama", 1) if kind == "rebuilt" else tiny.model("llama", 1)
    return StaticSession(target, ROWS, CAPACITY), StaticSession(other, ROWS, CAPACITY)


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        ("head", "torch"),
        ("head", "triton"),
        ("head", "one launch"),
        ("rebuilt", "one launch"),
        ("transformers", "torch"),
    ],
)
def test_a_step_makes_nothing_from_the_host(kind: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "transformers" and DEVICE == "cuda":
        pytest.skip("tiny.model is on the CPU")
    monkeypatch.setattr(triton_ops, "supports", lambda blocks: backend != "torch")
    monkeypatch.setattr(tables, "movable", lambda buffers: backend != "torch")
    ran: list[int] = []
    count_launches(monkeypatch, ran.append)
    tree = Tree.of(2, 1)
    calls = TreeCalls.of(tree, torch.device(DEVICE))
    if backend == "one launch":
        monkeypatch.setattr(megakernel, "is_small", lambda shape, x: True)
    target, drafter = opened(kind, tree)
    with capturing(monkeypatch):
        prefill(target, drafter)
        captured = step(target, drafter, calls)
    again = step(target, drafter, calls)
    for one, other in zip(captured, again, strict=True):
        assert torch.equal(one, other)
    if backend == "one launch":
        assert set(ran) == ({0, 1} if kind == "head" else {0})  # the head's first call, and its others


SHAPES = {  # what commands ask for where nothing is set, and what they are asked most often
    "default": ("head", torch.bfloat16, Tree.chain(5), dp.Sampling(temperature=0.8)),
    "no draft": ("none", torch.bfloat16, Tree.chain(0), dp.Sampling(top_k=20, top_p=0.9)),
    "tree": ("head", torch.bfloat16, Tree.of(2, 1), dp.Sampling(temperature=0.8)),
    "draft model": ("rebuilt", torch.float32, Tree.chain(1), dp.Sampling(top_p=0.9, min_p=0.01)),
    "penalties": ("head", torch.bfloat16, Tree.chain(1), dp.Sampling(repetition_penalty=1.2, banned=[3, 4])),
}


@INTERPRETED
@pytest.mark.parametrize("shape", SHAPES)
def test_nor_does_a_whole_step_with_verification(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that `DeviceStep` captures: drafting, the target's call, verification and commit, by our kernels."""
    kind, dtype, tree, sampling = SHAPES[shape]
    device = torch.device(DEVICE)
    monkeypatch.setattr(triton_ops, "supports", lambda blocks: True)
    monkeypatch.setattr(tables, "movable", lambda buffers: True)
    monkeypatch.setattr(kernels, "_fused", lambda logits, backend: True)
    if DEVICE == "cpu":
        monkeypatch.setattr(resident, "_stamp", lambda clock, place: None)  # the device's own clock
    target = cast(model("llama", 0), dtype)
    draft = None if kind == "none" else head(target) if kind == "head" else cast(model("llama", 1), dtype)
    step = DeviceStep(target, draft, "block" if tree.is_chain else "traversal", tree, ROWS, CAPACITY)
    step.by_kernels = True
    texts = [Context((70, 71, 72), ())] * ROWS
    controls = step.controls = Controls.of([sampling] * ROWS, tree.size, target.vocabulary, device, texts)
    for column, value in zip(step.state[1:], (2, 0, 30, 30, 1, 0), strict=True):
        column.fill_(value)
    step.read((row, text.prompt) for row, text in enumerate(texts))
    step._calls[tree] = TreeCalls.of(tree, device)
    moving = [part for part in (*step.state, controls.seen, controls.made) if part is not None]
    saved = [part.clone() for part in moving]
    with torch.no_grad():
        warm = step._body(tree)  # as before a capture
        for part, old in zip(moving, saved, strict=True):
            part.copy_(old)
        with capturing(monkeypatch):
            captured = step._body(tree)
    assert captured.failure is None
    assert not (captured.fault & (Fault.TARGET | Fault.DRAFT)).any()
    assert torch.equal(captured.tokens, warm.tokens)
    assert (captured.tokens[:, 0] >= 0).all()


def cast(wrapped: HFModel, dtype: torch.dtype) -> HFModel:
    return HFModel(wrapped.network.to(dtype), wrapped.tokenizer, wrapped.name)


def count_launches(monkeypatch: pytest.MonkeyPatch, note: Callable[[int], None]) -> None:
    run = megakernel.run

    def counted(blocks: Any, x: torch.Tensor, call: Any, first: int, keep: bool) -> Any:
        note(first)
        return run(blocks, x, call, first, keep)

    monkeypatch.setattr(megakernel, "run", counted)


def test_what_is_made_from_the_host_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    session = StaticSession(model("llama", 0), ROWS, CAPACITY)
    with capturing(monkeypatch), pytest.raises(AssertionError, match="from numbers of the host"):
        KernelTables.of(session.model.network.blocks, session.cache)
    with capturing(monkeypatch), pytest.raises(AssertionError, match="host waited"):
        session.cache.buffers[0].sum().item()
