"""The kernels of a layer against torch: every rule of what is seen, odd shapes, and whole texts by the fused step."""

from __future__ import annotations

import copy
from typing import NamedTuple

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

import draftproof as dp
from draftproof.engine.fused import FusedBatch
from draftproof.engine.laws import Member
from draftproof.engine.request import Request
from draftproof.engine.trace import Trace
from draftproof.models import cuda
from draftproof.models import texts as packing
from draftproof.models.head import HeadModel
from draftproof.models.headnet import HeadConfig, HeadNetwork
from draftproof.models.hf import HFModel
from draftproof.models.lean import rebuild
from draftproof.models.llama import Block, Rotation, Shape, frequencies
from draftproof.models.slots import SlotCache
from tests import tiny

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


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
    entry = torch.zeros(1, case.shared, 1, case.size, dtype=dtype, device=DEVICE)
    cache.layers[0].lazy_initialization(entry, entry)
    for buffer in cache.buffers:
        buffer.normal_()
    return cache


def run(case: Case, dtype: torch.dtype = torch.float32) -> list[tuple[torch.Tensor, ...]]:
    """What a layer says, and its keys and values afterwards: by torch, and by the kernels."""
    torch.manual_seed(0)
    block = Block(Shape(48, case.heads, case.shared, case.size, 80, bias=True)).to(DEVICE, dtype)
    block.requires_grad_(False)
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
    out = []
    for cache, mask in zip(caches, (seen[:, None], cuda.Causal(own, case.window)), strict=True):
        cache.place_on_device(own)
        before = x.clone()
        out.append((block(x, rotation, mask, cache.layers[0]), *cache.buffers))
        assert torch.equal(x, before)  # others may hold on to it
    assert not caches[1].layers[0].arrived.any()
    return out


@pytest.mark.parametrize("name", CASES)
def test_a_layer_by_kernels_is_the_layer(name):
    theirs, ours = run(CASES[name])
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=2e-5, rtol=1e-5)


# the interpreter multiplies bfloat16 as if it were integers
@pytest.mark.parametrize("dtype", [torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])])
@pytest.mark.parametrize("name", ["split", "split, many", "groups of three"])
def test_half_precision(name, dtype):
    theirs, ours = run(CASES[name], dtype)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=16 * torch.finfo(dtype).eps, rtol=4 * torch.finfo(dtype).eps)


def test_angles():
    positions = torch.tensor([[0, 1], [70, 8191]], device=DEVICE)
    ours = cuda.angles(positions, frequencies(16).to(DEVICE), 1.5, torch.float32)
    for mine, other in zip(ours, Rotation.of(positions, frequencies(16).to(DEVICE), 1.5), strict=True):
        torch.testing.assert_close(mine, other)


def model(family: str, seed: int) -> HFModel:
    """Like tiny.model, with heads large enough for the kernels."""
    torch.manual_seed(seed)
    shape = {**tiny.SHAPE, "head_dim": 16, "num_hidden_layers": 1}
    if family == "mistral":
        network = MistralForCausalLM(MistralConfig(**shape, sliding_window=tiny.WINDOW))
    else:
        network = LlamaForCausalLM(LlamaConfig(**shape))
    for weight in network.requires_grad_(False).parameters():
        weight.mul_(3)
    return HFModel(rebuild(network.eval().to(DEVICE)), tiny.tokenizer(), family)


def head(target: HFModel) -> HeadModel:
    torch.manual_seed(5)
    network = HeadNetwork(HeadConfig(Shape(32, 4, 2, 16, 48), 2, (0, 1), 10000.0, tiny.VOCABULARY // 2))
    network.tokens.copy_(torch.arange(0, tiny.VOCABULARY, 2))
    return HeadModel(target, network.eval().requires_grad_(False))


def texts(target: HFModel, draft: HFModel | HeadModel) -> list[list[int]]:
    """Two texts of one batch, of which one begins with its second token."""
    sampling = dp.Sampling(temperature=0.7)
    prompts = ((70,) * 9, (80,))
    requests = [Request(target, prompts[r], sampling, sampling, 6, (), Member(11, r), Trace()) for r in range(2)]
    batch = FusedBatch(target, draft, "block", 3, 2, 30)
    for request in requests:
        batch.add([request])
    while not batch.is_finished:
        batch.step()
    return [request.tokens for request in requests]


@pytest.mark.parametrize("family", ["llama", "mistral", "head"])
def test_texts_are_the_same_by_kernels(family, monkeypatch):
    target = model("llama" if family == "head" else family, 0)
    draft = head(target) if family == "head" else model(family, 1)
    calls: list[bool] = []
    attend = cuda.attend
    monkeypatch.setattr(packing, "STEP", 8)  # fewer programs to interpret
    monkeypatch.setattr(cuda, "attend", lambda *arguments: (calls.append(True), attend(*arguments))[1])
    monkeypatch.setattr(cuda, "fits", lambda blocks, tokens: False)
    theirs = texts(target, draft)
    assert not calls
    monkeypatch.setattr(cuda, "fits", lambda blocks, tokens: True)
    assert texts(target, draft) == theirs
    assert calls


def test_what_fits():
    assert not cuda.fits(model("llama", 0).network.cpu().blocks, 1)
    assert cuda.fits(model("llama", 0).network.blocks, 1) == (DEVICE == "cuda")
