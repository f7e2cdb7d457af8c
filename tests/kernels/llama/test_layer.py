"""The kernels of a layer against torch: every rule of what is seen, odd shapes, and whole texts by the fused step."""

from __future__ import annotations

import copy
from typing import NamedTuple

import pytest
import torch

import draftproof as dp
from draftproof.kernels.llama import limits, ops
from draftproof.models.drafters.head import HeadModel
from draftproof.models.hf import HFModel
from draftproof.models.kv_cache import SlotCache
from draftproof.models.llama.backends import tables, torch_ops, triton_ops
from draftproof.models.llama.backends.tables import KernelTables
from draftproof.models.llama.block import Block, Blocks, LayerShape
from draftproof.models.llama.call import LayerCall
from draftproof.models.llama.head import HeadConfig, HeadNetwork
from draftproof.models.llama.masks import FULL, Causal
from draftproof.models.llama.placement import Slots
from draftproof.models.llama.rotary import Rotation, frequencies
from draftproof.models.static import packing
from draftproof.models.static.tree_calls import NodeCall
from tests.support import tiny
from tests.support.layers import CHAIN, DEVICE, model, texts


class Case(NamedTuple):
    """Heads, and the first token's position in each row."""

    heads: int
    shared: int
    size: int
    tokens: int
    base: tuple[int, ...]
    window: int | None = None
    capacity: int = 70


CASES = {
    "one token": Case(4, 2, 64, 1, (0, 5, 63, 64, 65)),
    "a chain": Case(4, 1, 64, 6, (0, 1, 40, 62)),
    "groups of three": Case(9, 3, 64, 2, (3, 17)),
    "no groups": Case(3, 3, 32, 4, (9,)),
    "large heads, many queries": Case(7, 1, 128, 8, (30,)),
    "before the text": Case(4, 2, 64, 2, (-1, 0, 7)),
    "long before the text": Case(4, 2, 16, 5, (-3, -1, 2)),
    "split": Case(2, 2, 16, 3, (0, 254, 255, 256, 257, 500, 513, 896), capacity=900),
    "split, many": Case(4, 1, 16, 1, (899, 700), capacity=900),
    "window": Case(4, 2, 32, 4, (-1, 0, 3, 4, 5, 6, 50), window=5),
    "window, split": Case(2, 1, 16, 3, (259, 261, 400, 890), window=259, capacity=900),
    "window of one": Case(2, 1, 16, 3, (0, 5), window=1),
}


def filled(case: Case, dtype: torch.dtype) -> SlotCache:
    """A layer with random keys and values in every slot: those that are not to be seen must not be."""
    cache = SlotCache(1, len(case.base), case.capacity)
    cache.allocate(case.shared, case.size, torch.zeros(0, dtype=dtype, device=DEVICE))
    for buffer in cache.buffers:
        buffer.normal_()
    return cache


def run(case: Case, dtype: torch.dtype = torch.float32) -> list[tuple[torch.Tensor, ...]]:
    """What a layer says, and its keys and values afterwards: by torch, and by the kernels."""
    torch.manual_seed(0)
    block = Block(LayerShape(48, case.heads, case.shared, case.size, 80, bias=True)).to(DEVICE, dtype)
    blocks = Blocks([block.requires_grad_(False)])
    for norm in (block.norm_in, block.norm_mlp):
        norm.weight.uniform_(0.5, 2)
    caches = [filled(case, dtype)]
    caches.append(copy.deepcopy(caches[0]))
    positions = torch.tensor(case.base, device=DEVICE)[:, None] + torch.arange(case.tokens, device=DEVICE)
    own = (positions + 1).clamp_min(0)
    x = torch.randn(len(case.base), case.tokens, 48, dtype=dtype, device=DEVICE)
    first = (own == 0).sum(1).tolist()
    for b, repeated in enumerate(first):
        x[b, :repeated] = x[b, 0].clone()  # what shares slot 0 is the same
    rotation = Rotation.of(positions.clamp_min(0), frequencies(case.size).to(DEVICE)).to(dtype)
    slots = torch.arange(case.capacity + 1, device=DEVICE)
    seen = (slots <= own[..., None]) & ((slots > 0) | (own[..., None] == 0))
    if case.window is not None:
        seen &= own[..., None] - slots < case.window
    out, placement, made = [], Slots(own, case.capacity + 1), KernelTables.of(blocks, caches[1])
    masks = (torch_ops, seen[:, None], None), (triton_ops, Causal(case.window), made)
    for cache, (backend, mask, table) in zip(caches, masks, strict=True):
        call, before = LayerCall(rotation, {FULL: mask}, placement, cache.layers, table), x.clone()
        assert backend.fits(blocks, x, call, 0, ())
        out.append((backend.run(blocks, x, call, 0, ())[0], *cache.buffers))
        assert torch.equal(x, before)  # others may hold on to it
    assert not made.arrivals.any()
    return out


@pytest.mark.parametrize("name", CASES)
def test_a_layer_by_kernels_is_the_layer(name):
    theirs, ours = run(CASES[name])
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=2e-5, rtol=1e-5)


class Branches(NamedTuple):
    """A tree, of whose nodes those from `start` on are new; the root's slot in each row."""

    tree: dp.Tree
    start: int
    root: tuple[int, ...]
    window: int | None = None
    heads: int = 4
    shared: int = 2


TREES = {
    "whole": Branches(dp.Tree.best(20, 5), 0, (1, 2, 40)),
    "32 nodes, groups of four": Branches(dp.Tree.best(31, 6), 0, (33,), heads=4, shared=1),
    "64 nodes, in parts": Branches(dp.Tree.best(63, 6), 0, (3, 300), heads=6, shared=1),
    "a level": Branches(dp.Tree.best(20, 5), 10, (0, 1, 63)),
    "inner nodes of a level, split": Branches(dp.Tree.best(12, 4), 4, (250, 256, 600)),
    "window": Branches(dp.Tree.best(12, 4), 0, (1, 3, 30), window=6),
    "window, a level": Branches(dp.Tree.best(12, 4), 4, (1, 3, 300), window=9),
    "a chain": Branches(dp.Tree.chain(4), 0, (1, 17)),
}


def tree_nodes(case: Branches) -> NodeCall:
    """All from the first new one on; where earlier ones are in the cache, those of its level that have children."""
    tree, (level,) = case.tree, (level for level in case.tree.levels if case.start in level)
    some = tuple(node for node in level if node >= case.start and node in tree.inner)
    return NodeCall.of(tree, some if case.start else tuple(range(tree.size)), torch.device(DEVICE))


def test_branching_is_what_the_tree_says():
    """Node by node: the text before the root, ancestors and itself, no padding; in windows as positions are apart."""
    for case in TREES.values():
        nodes, tree = tree_nodes(case), case.tree
        placement = nodes.placement(torch.tensor(case.root, device=DEVICE), 700)
        seen = nodes.mask(case.window).visible(placement)
        for b, root in enumerate(case.root):
            for t, node in enumerate(nodes.nodes):
                apart = {slot: root + tree.depth[node] - slot for slot in range(1, root)}
                apart |= {root + n: tree.depth[node] - tree.depth[n] for n in (0, *tree.path(node)) if root + n > 0}
                expected = {slot for slot, far in apart.items() if case.window is None or far < case.window}
                assert set(seen[b, t].nonzero()[:, 0].tolist()) == expected


@pytest.mark.parametrize("name", TREES)
def test_nodes_of_a_tree_by_kernels_see_what_they_may(name, monkeypatch):
    monkeypatch.setattr(limits, "QUERY_BYTES", 100 * 64)  # so that many queries are done in parts
    case, rows = TREES[name], len(TREES[name].root)
    torch.manual_seed(0)
    blocks = Blocks([Block(LayerShape(48, case.heads, case.shared, 16, 80))]).to(DEVICE).requires_grad_(False)
    nodes, root = tree_nodes(case), torch.tensor(case.root, device=DEVICE)
    rule, placement = nodes.mask(case.window), nodes.placement(root, 701)
    caches = [filled(Case(case.heads, case.shared, 16, 0, case.root, capacity=700), torch.float32)]
    caches.append(copy.deepcopy(caches[0]))
    x = torch.randn(rows, len(nodes.nodes), 48, device=DEVICE)
    rotation = Rotation.of(root[:, None] + nodes.depth - 1, frequencies(16).to(DEVICE))
    out = []
    for cache, backend in zip(caches, (torch_ops, triton_ops), strict=True):
        table = KernelTables.of(blocks, cache)
        call = LayerCall(rotation, {FULL: rule}, placement, cache.layers, table)
        assert backend.fits(blocks, x, call, 0, ())
        out.append((backend.run(blocks, x, call, 0, ())[0], *cache.buffers))
    for mine, other in zip(*out, strict=True):
        torch.testing.assert_close(mine, other, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_accepted_path_is_moved_in_one_launch(dtype):
    """All buffers, of different heads and widths, as by index; where nothing is to be moved, nothing is."""
    caches = [SlotCache(2, 4, 40) for _ in range(2)]
    torch.manual_seed(0)
    entry = torch.zeros(1, 3, 1, 16, dtype=dtype, device=DEVICE)
    for cache in caches:
        cache.allocate(3, 16, entry)
        cache.make_features(2 * limits.MOVED + 48, entry)
    for buffers in zip(*(cache.buffers for cache in caches), strict=True):
        buffers[0].normal_()
        buffers[1].copy_(buffers[0])
    before = [buffer.clone() for buffer in caches[0].buffers]
    root, count = torch.tensor([1, 5, 20, 9], device=DEVICE), torch.tensor([3, 0, 2, 1], device=DEVICE)
    path = torch.tensor([[2, 5, 9], [0, 0, 0], [1, 4, 0], [4, 0, 0]], device=DEVICE)
    caches[0].compact(root, path, count)
    ops.compact_cache(ops.Buffers.of(caches[1].buffers), root, path, count)
    for old, one, other in zip(before, *(cache.buffers for cache in caches), strict=True):
        assert torch.equal(one, other)
        for b, (first, kept) in enumerate(zip(root.tolist(), count.tolist(), strict=True)):
            for i in range(kept):
                assert torch.equal(one[b, :, first + 1 + i], old[b, :, first + path[b, i]])
            assert torch.equal(one[b, :, first + kept + 1 :], old[b, :, first + kept + 1 :])
            assert torch.equal(one[b, :, : first + 1], old[b, :, : first + 1])


# the interpreter multiplies bfloat16 as if it were integers
@pytest.mark.parametrize("dtype", [torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])])
@pytest.mark.parametrize("name", ["split", "split, many", "groups of three"])
def test_half_precision(name, dtype):
    theirs, ours = run(CASES[name], dtype)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=16 * torch.finfo(dtype).eps, rtol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("tree", [False, True])
def test_what_a_head_reads_is_made_in_one_launch(tree):
    """States and tokens as they come, or as a level of a tree takes them; a token that was not drawn is any."""
    torch.manual_seed(0)
    norms = torch.nn.RMSNorm(40, 1e-3), torch.nn.RMSNorm(40, 1e-5)
    for norm in norms:
        norm.to(DEVICE).requires_grad_(False).weight.uniform_(0.5, 2)
    states, embeddings = torch.randn(3, 4, 40, device=DEVICE), torch.randn(9, 40, device=DEVICE)
    tokens = torch.randint(9, (3, 4 + 3 * tree), device=DEVICE)
    parent = torch.tensor([2, 2, 0], device=DEVICE) if tree else torch.arange(4, device=DEVICE)
    number = torch.tensor([3, 5, 6], device=DEVICE) if tree else parent
    tokens[1, 5 if tree else 2] = -1
    made = ops.head_inputs(states, tokens, embeddings, norms, ops.Taken(parent, number) if tree else None)
    read = [norms[0](states[:, parent]), norms[1](embeddings[tokens[:, number].clamp_min(0)])]
    torch.testing.assert_close(made, torch.cat(read, dim=-1))


def test_angles():
    positions = torch.tensor([[0, 1], [70, 8191]], device=DEVICE)
    ours = ops.rotary_angles(positions, frequencies(16).to(DEVICE), 1.5, torch.float32)
    for mine, other in zip(ours, Rotation.of(positions, frequencies(16).to(DEVICE), 1.5), strict=True):
        torch.testing.assert_close(mine, other)


def head(target: HFModel) -> HeadModel:
    torch.manual_seed(5)
    network = HeadNetwork(HeadConfig(LayerShape(32, 4, 2, 16, 48), 2, (0, 1), 10000.0, tiny.VOCABULARY // 2))
    network.tokens.copy_(torch.arange(0, tiny.VOCABULARY, 2))
    return HeadModel(target, network.eval().requires_grad_(False))


@pytest.mark.parametrize("tree", [CHAIN, dp.Tree.best(7, 3)], ids=["chain", "tree"])
@pytest.mark.parametrize("family", ["llama", "mistral", "head"])
def test_texts_are_the_same_by_kernels(family, tree, monkeypatch):
    target = model("llama" if family == "head" else family, 0)
    draft = head(target) if family == "head" else model(family, 1)
    calls: list[bool] = []
    attend = ops.decode_attention
    monkeypatch.setattr(packing, "STEP", 8)  # fewer programs to interpret
    monkeypatch.setattr(ops, "decode_attention", lambda *arguments: (calls.append(True), attend(*arguments))[1])
    monkeypatch.setattr(triton_ops, "supports", lambda blocks: False)
    theirs = texts(target, draft, tree)
    assert not calls
    monkeypatch.setattr(triton_ops, "supports", lambda blocks: True)
    monkeypatch.setattr(tables, "movable", lambda buffers: True)
    assert texts(target, draft, tree) == theirs
    assert calls


def test_what_is_supported():
    assert not triton_ops.supports(model("llama", 0).network.cpu().blocks)
    assert triton_ops.supports(model("llama", 0).network.blocks) == (DEVICE == "cuda")
    blocks = model("llama", 0).network.blocks
    assert triton_ops.takes(blocks, 64, torch.float32)
    assert not triton_ops.takes(blocks, 65, torch.float32)
