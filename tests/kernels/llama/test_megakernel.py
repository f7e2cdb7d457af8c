"""All layers of a small network in one launch against the layers one by one: odd shapes, and whole texts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from draftproof import Tree
from draftproof.kernels.llama import limits
from draftproof.models.kv_cache import SlotCache
from draftproof.models.llama.backends import megakernel, torch_ops, triton_ops
from draftproof.models.llama.backends.tables import KernelTables
from draftproof.models.llama.block import Block, Blocks, LayerShape
from draftproof.models.llama.call import LayerCall
from draftproof.models.llama.masks import FULL, Causal, Mask, additive
from draftproof.models.llama.placement import Placement, Slots
from draftproof.models.llama.rotary import Rotation, frequencies
from draftproof.models.static.tree_calls import NodeCall
from tests.support.layers import CHAIN, DEVICE, model, texts


class Case(NamedTuple):
    """A network, and the first token's position in each row."""

    shape: LayerShape
    layers: int
    tokens: int
    base: tuple[int, ...]
    capacity: int = 70


CASES = {
    "one token": Case(LayerShape(48, 4, 2, 16, 80), 2, 1, (0, 5, 63)),
    "two tokens, before the text": Case(LayerShape(40, 4, 1, 32, 104), 2, 2, (-1, 0, 40)),
    "split, groups of three, bias": Case(LayerShape(72, 3, 1, 16, 88, bias=True), 3, 2, (300, 254, 255), capacity=600),
    "a single row": Case(LayerShape(24, 3, 3, 64, 56), 1, 1, (17,)),
    "many rows": Case(LayerShape(48, 2, 1, 16, 40), 1, 2, tuple(range(3, 12))),
}


def network(case: Case, dtype: torch.dtype) -> tuple[Blocks, SlotCache, torch.Tensor, Rotation, torch.Tensor]:
    """Random weights, a cache full of what must not be seen, tokens, their angles and their slots."""
    torch.manual_seed(0)
    blocks = Blocks(Block(case.shape) for _ in range(case.layers)).to(DEVICE, dtype).requires_grad_(False)
    for block in blocks:
        for norm in (block.norm_in, block.norm_mlp):
            norm.weight.uniform_(0.5, 2)
    cache = SlotCache(case.layers, len(case.base), case.capacity)
    cache.allocate(case.shape.shared, case.shape.size, torch.zeros(0, dtype=dtype, device=DEVICE))
    for buffer in cache.buffers:
        buffer.normal_()
    positions = torch.tensor(case.base, device=DEVICE)[:, None] + torch.arange(case.tokens, device=DEVICE)
    x = torch.randn(len(case.base), case.tokens, case.shape.width, dtype=dtype, device=DEVICE)
    rotation = Rotation.of(positions.clamp_min(0), frequencies(case.shape.size).to(DEVICE)).to(dtype)
    return blocks, cache, x, rotation, positions + 1


def in_one(
    blocks: Blocks, cache: SlotCache, x: torch.Tensor, rotation: Rotation, mask: Mask, placement: Placement
) -> torch.Tensor:
    call = LayerCall(rotation, {FULL: mask}, placement, cache.layers, KernelTables.of(blocks, cache))
    return megakernel.run(blocks, x, call, 0, ())[0]


def one_by_one(
    blocks: Blocks, cache: SlotCache, x: torch.Tensor, rotation: Rotation, mask: Mask, placement: Placement
) -> torch.Tensor:
    return torch_ops.run(blocks, x, LayerCall(rotation, {FULL: mask}, placement, cache.layers), 0, ())[0]


def both(case: Case, dtype: torch.dtype = torch.float32) -> list[tuple[torch.Tensor, ...]]:
    """What the layers say and what the cache holds afterwards: one by one by torch, and all in one launch."""
    blocks, theirs, x, rotation, own = network(case, dtype)
    ours, before, placement = copy.deepcopy(theirs), x.clone(), Slots(own, case.capacity + 1)
    said = one_by_one(blocks, theirs, x, rotation, Causal().visible(placement)[:, None], placement)
    mine = in_one(blocks, ours, x, rotation, Causal(), placement)
    assert torch.equal(x, before)  # others may hold on to it
    return [(said, *theirs.buffers), (mine, *ours.buffers)]


@pytest.mark.parametrize("few", [0, 64], ids=["by tensor cores", "by plain arithmetic"])
@pytest.mark.parametrize("name", CASES)
def test_one_launch_is_all_layers(name, few, monkeypatch):
    monkeypatch.setattr(limits, "GEMV_ROWS", few if name != "many rows" else min(few, 4))
    theirs, ours = both(CASES[name])
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("keep", [(1,), (0, 1)])
def test_the_inputs_of_some_layers_are_kept(keep):
    case = next(case for case in CASES.values() if case.layers > 1)
    blocks, theirs, x, rotation, own = network(case, torch.float32)
    ours, placement = copy.deepcopy(theirs), Slots(own, case.capacity + 1)
    calls = [
        LayerCall(rotation, {FULL: mask}, placement, cache.layers, KernelTables.of(blocks, cache))
        for mask, cache in ((additive(Causal().visible(placement), x.dtype), theirs), (Causal(), ours))
    ]
    (said, inputs), (mine, kept) = (
        backend.run(blocks, x, call, 0, keep) for backend, call in zip((torch_ops, megakernel), calls, strict=True)
    )
    torch.testing.assert_close(mine, said, atol=2e-5, rtol=1e-5)
    for number in keep:
        torch.testing.assert_close(kept[number], inputs[number], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(("names", "few"), [((0, 1, 2, 3, 4, 5, 6, 7), 0), ((4, 5), 0), ((4, 5), 64)])
def test_nodes_of_a_tree_see_what_they_may(names, few, monkeypatch):
    """Of levels before, too, which are in the cache."""
    monkeypatch.setattr(limits, "GEMV_ROWS", few)
    case = Case(LayerShape(48, 4, 2, 16, 80), 2, len(names), (0, 4, 300), capacity=400)
    blocks, theirs, x, _, _ = network(case, torch.float32)
    nodes, root = NodeCall.of(Tree.best(7, 3), names, torch.device(DEVICE)), torch.tensor(case.base, device=DEVICE) + 1
    rule, ours, placement = nodes.mask(), copy.deepcopy(theirs), nodes.placement(root, case.capacity + 1)
    rotation = Rotation.of(root[:, None] + nodes.depth, frequencies(16).to(DEVICE))
    said = one_by_one(blocks, theirs, x, rotation, rule.visible(placement)[:, None], placement)
    mine = in_one(blocks, ours, x, rotation, rule, placement)
    for one, other in zip((mine, *ours.buffers), (said, *theirs.buffers), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("few", [0, 64])
def test_half_precision(few, monkeypatch):
    monkeypatch.setattr(limits, "GEMV_ROWS", few)
    theirs, ours = both(CASES["split, groups of three, bias"], torch.float16)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=0.02, rtol=0.004)


@pytest.mark.parametrize("few", [0, 64])
def test_a_row_does_not_depend_on_the_others(few, monkeypatch):
    monkeypatch.setattr(limits, "GEMV_ROWS", few)
    case = CASES["one token"]
    blocks, cache, x, rotation, own = network(case, torch.float32)
    placement = Slots(own, case.capacity + 1)
    together = in_one(blocks, copy.deepcopy(cache), x, rotation, Causal(), placement)
    for b in range(len(own)):
        alone, row = SlotCache(case.layers, 1, case.capacity), slice(b, b + 1)
        alone.allocate(case.shape.shared, case.shape.size, x)
        for mine, whole in zip(alone.buffers, cache.buffers, strict=True):
            mine.copy_(whole[row])
        angles, placed = Rotation(rotation.cos[row], rotation.sin[row]), Slots(own[row], case.capacity + 1)
        assert torch.equal(in_one(blocks, alone, x[row], angles, Causal(), placed), together[row])


@pytest.mark.parametrize(("tree", "tokens"), [(CHAIN, {1, 2, 4}), (Tree.best(5, 2), {2, 6})], ids=["chain", "tree"])
def test_texts_are_the_same_in_one_launch(tree, tokens, monkeypatch):
    """Of a drafter's first call, its others, and the target's."""
    target, draft = model("llama", 0), model("llama", 1)
    calls: list[int] = []
    run = megakernel.run
    monkeypatch.setattr(megakernel, "run", lambda _, x, *rest: (calls.append(x.shape[1]), run(_, x, *rest))[1])
    monkeypatch.setattr(triton_ops, "supports", lambda blocks: False)
    theirs = texts(target, draft, tree)
    assert not calls
    monkeypatch.setattr(triton_ops, "supports", lambda blocks: True)
    monkeypatch.setattr(megakernel, "is_small", lambda shape, x: True)
    assert texts(target, draft, tree) == theirs
    assert set(calls) == tokens


def test_what_is_done_in_one_launch(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: device)
    causal, shape, made = (
        Causal(),
        LayerShape(576, 9, 3, 64, 1536),
        KernelTables({0: torch.zeros(2, 9)}, torch.zeros(0)),
    )

    def fits(
        rows: int = 2,
        size: int = 2,
        device: Any = (9, 0),
        shape: LayerShape = shape,
        masks: Any = (causal,),
        tables: KernelTables | None = made,
        tokens: int = 1,
        first: int = 0,
        keep: Sequence[int] = (),
    ) -> bool:
        x: Any = SimpleNamespace(shape=(rows, tokens), is_cuda=True, device=device, element_size=lambda: size)
        call: Any = LayerCall(Rotation(*torch.zeros(2)), dict(enumerate(masks)), tables=tables)  # type: ignore[arg-type]
        return megakernel.fits(SimpleNamespace(shape=shape), x, call, first, keep)

    assert fits()
    assert fits(rows=64)
    assert not fits(rows=65)
    assert fits(tokens=21)
    assert not fits(rows=1, tokens=22)
    assert not fits(size=4)
    assert not fits(device=(8, 0))
    assert not fits(shape=shape._replace(inner=4096))
    assert not fits(tables=None)
    assert not fits(first=1)  # no table was made for calls that begin there
    assert fits(keep=[0, 1])
    assert not fits(keep=range(megakernel.KEPT + 1))  # each ends a launch
    assert not fits(masks=(Causal(), Causal(5)))
    assert not fits(masks=(Causal(5),))
    assert not fits(masks=(torch.zeros(1),))
    tree = NodeCall.of(Tree.star(2), (1, 2), torch.device("cpu")).mask()
    assert fits(masks=(tree,))
    assert not fits(masks=(Causal(), tree))
