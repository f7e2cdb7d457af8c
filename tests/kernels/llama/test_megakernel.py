"""All layers of a small network in one launch against the layers one by one: odd shapes, and whole texts."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from draftproof import Tree
from draftproof.models.kv_cache import SlotCache
from draftproof.models.llama import cuda
from draftproof.models.llama.block import Block, Blocks, Rotation, Shape, frequencies
from draftproof.models.static.tree_calls import Nodes
from tests.support.layers import CHAIN, DEVICE, model, texts


class Case(NamedTuple):
    """A network, and the first token's position in each row."""

    shape: Shape
    layers: int
    tokens: int
    base: tuple[int, ...]
    capacity: int = 70


CASES = {
    "one token": Case(Shape(48, 4, 2, 16, 80), 2, 1, (0, 5, 63)),
    "two tokens, before the text": Case(Shape(40, 4, 1, 32, 104), 2, 2, (-1, 0, 40)),
    "split, groups of three, bias": Case(Shape(72, 3, 1, 16, 88, bias=True), 3, 2, (300, 254, 255), capacity=600),
    "a single row": Case(Shape(24, 3, 3, 64, 56), 1, 1, (17,)),
    "many rows": Case(Shape(48, 2, 1, 16, 40), 1, 2, tuple(range(3, 12))),
}


def network(case: Case, dtype: torch.dtype) -> tuple[Blocks, SlotCache, torch.Tensor, Rotation, torch.Tensor]:
    """Random weights, a cache full of what must not be seen, tokens, their angles and their slots."""
    torch.manual_seed(0)
    blocks = Blocks(Block(case.shape) for _ in range(case.layers)).to(DEVICE, dtype).requires_grad_(False)
    for block in blocks:
        for norm in (block.norm_in, block.norm_mlp):
            norm.weight.uniform_(0.5, 2)
    cache = SlotCache(case.layers, len(case.base), case.capacity)
    entry = torch.zeros(1, case.shape.shared, 1, case.shape.size, dtype=dtype, device=DEVICE)
    for layer in cache.layers:
        layer.lazy_initialization(entry, entry)
    for buffer in cache.buffers:
        buffer.normal_()
    positions = torch.tensor(case.base, device=DEVICE)[:, None] + torch.arange(case.tokens, device=DEVICE)
    x = torch.randn(len(case.base), case.tokens, case.shape.width, dtype=dtype, device=DEVICE)
    rotation = Rotation.of(positions.clamp_min(0), frequencies(case.shape.size).to(DEVICE)).to(dtype)
    return blocks, cache, x, rotation, positions + 1


def both(case: Case, dtype: torch.dtype = torch.float32) -> list[tuple[torch.Tensor, ...]]:
    """What the layers say and what the cache holds afterwards: one by one by torch, and all in one launch."""
    blocks, theirs, x, rotation, own = network(case, dtype)
    ours, before = copy.deepcopy(theirs), x.clone()
    theirs.place_on_device(own)
    rule = cuda.Causal(own)
    mask = rule.over(torch.arange(case.capacity + 1, device=DEVICE))[:, None]
    said, _ = blocks(x, rotation, [mask] * case.layers, theirs.layers)
    mine = cuda.network(x, blocks, rotation, rule, ours.layers)
    assert torch.equal(x, before)  # others may hold on to it
    return [(said, *theirs.buffers), (mine, *ours.buffers)]


@pytest.mark.parametrize("few", [0, 64], ids=["by tensor cores", "by plain arithmetic"])
@pytest.mark.parametrize("name", CASES)
def test_one_launch_is_all_layers(name, few, monkeypatch):
    monkeypatch.setattr(cuda, "FEW", few if name != "many rows" else min(few, 4))
    theirs, ours = both(CASES[name])
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(("names", "few"), [((0, 1, 2, 3, 4, 5, 6, 7), 0), ((4, 5), 0), ((4, 5), 64)])
def test_nodes_of_a_tree_see_what_they_may(names, few, monkeypatch):
    """Of levels before, too, which are in the cache."""
    monkeypatch.setattr(cuda, "FEW", few)
    case = Case(Shape(48, 4, 2, 16, 80), 2, len(names), (0, 4, 300), capacity=400)
    blocks, theirs, x, _, _ = network(case, torch.float32)
    nodes, root = Nodes.of(Tree.best(7, 3), names, torch.device(DEVICE)), torch.tensor(case.base, device=DEVICE) + 1
    rule, ours = nodes.rule(root), copy.deepcopy(theirs)
    rotation = Rotation.of(root[:, None] + nodes.depth, frequencies(16).to(DEVICE))
    mask = rule.over(torch.arange(case.capacity + 1, device=DEVICE))[:, None]
    theirs.place_on_device(rule.own)
    said, _ = blocks(x, rotation, [mask] * case.layers, theirs.layers)
    mine = cuda.network(x, blocks, rotation, rule, ours.layers)
    for one, other in zip((mine, *ours.buffers), (said, *theirs.buffers), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("few", [0, 64])
def test_half_precision(few, monkeypatch):
    monkeypatch.setattr(cuda, "FEW", few)
    theirs, ours = both(CASES["split, groups of three, bias"], torch.float16)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=0.02, rtol=0.004)


@pytest.mark.parametrize("few", [0, 64])
def test_a_row_does_not_depend_on_the_others(few, monkeypatch):
    monkeypatch.setattr(cuda, "FEW", few)
    case = CASES["one token"]
    blocks, cache, x, rotation, own = network(case, torch.float32)
    together = cuda.network(x, blocks, rotation, cuda.Causal(own), copy.deepcopy(cache).layers)
    for b in range(len(own)):
        alone = copy.deepcopy(cache)
        alone.first = b
        row = slice(b, b + 1)
        angles = Rotation(rotation.cos[row], rotation.sin[row])
        assert torch.equal(cuda.network(x[row], blocks, angles, cuda.Causal(own[row]), alone.layers), together[row])


@pytest.mark.parametrize(("tree", "tokens"), [(CHAIN, {1, 2, 4}), (Tree.best(5, 2), {2, 6})], ids=["chain", "tree"])
def test_texts_are_the_same_in_one_launch(tree, tokens, monkeypatch):
    """Of a drafter's first call, its others, and the target's."""
    target, draft = model("llama", 0), model("llama", 1)
    calls: list[int] = []
    in_one = cuda.network
    monkeypatch.setattr(cuda, "network", lambda x, *rest: (calls.append(x.shape[1]), in_one(x, *rest))[1])
    monkeypatch.setattr(cuda, "fits", lambda blocks, tokens: False)
    theirs = texts(target, draft, tree)
    assert not calls
    monkeypatch.setattr(cuda, "fits", lambda blocks, tokens: True)
    monkeypatch.setattr(cuda, "whole", lambda x, shape, masks, stores: isinstance(masks[0], cuda.Rule))
    assert texts(target, draft, tree) == theirs
    assert set(calls) == tokens


def test_what_is_done_in_one_launch(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: device)
    shape, rule = Shape(576, 9, 3, 64, 1536), cuda.Causal(torch.zeros(1, 1))

    def fits(
        rows: int = 2,
        size: int = 2,
        device: Any = (9, 0),
        shape: Shape = shape,
        masks: Any = (rule, rule),
        store: Any = 0,
        tokens: int = 1,
    ) -> bool:
        x: Any = SimpleNamespace(shape=(rows, tokens), is_cuda=True, device=device, element_size=lambda: size)
        return cuda.whole(x, shape, masks, (store, store))

    assert fits()
    assert fits(rows=64)
    assert not fits(rows=65)
    assert fits(tokens=21)
    assert not fits(rows=1, tokens=22)
    assert not fits(size=4)
    assert not fits(device=(8, 0))
    assert not fits(shape=shape._replace(inner=4096))
    assert not fits(store=None)
    assert not fits(masks=(rule, rule._replace(window=5)))
    assert not fits(masks=(rule._replace(window=5),) * 2)
    assert not fits(masks=(torch.zeros(1), torch.zeros(1)))
    tree = Nodes.of(Tree.star(2), (1, 2), torch.device("cpu")).rule(torch.zeros(1))
    assert fits(masks=(tree, tree))
    assert not fits(masks=(rule, tree))
