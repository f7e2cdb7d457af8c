"""The rebuilt network is the transformers network, called as that is."""

from __future__ import annotations

import copy
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

import draftproof as dp
from draftproof import native
from draftproof.draft import Tree
from draftproof.models.hf import HFModel
from draftproof.models.kv_cache import SlotCache
from draftproof.models.llama.backends import native_ops, torch_ops
from draftproof.models.llama.block import Block, LayerShape
from draftproof.models.llama.call import LayerCall
from draftproof.models.llama.masks import FULL, Causal, additive
from draftproof.models.llama.network import FusedLlama
from draftproof.models.llama.placement import Slots, placed
from draftproof.models.llama.rebuild import pack, rebuild
from draftproof.models.llama.rotary import Rotation, frequencies
from draftproof.native import build
from tests.support import tiny

SCALED = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def qwen2(**settings: object) -> Qwen2ForCausalLM:
    torch.manual_seed(1)
    made = Qwen2ForCausalLM(Qwen2Config(**tiny.SHAPE, **settings))
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)  # biases too
    return made.eval()


def networks() -> dict[str, object]:
    mixed = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    rope = {**SCALED, "rope_theta": 500.0, "original_max_position_embeddings": 32}
    torch.manual_seed(2)
    return {
        "llama": copy.deepcopy(tiny.network("llama")),
        "llama3": LlamaForCausalLM(LlamaConfig(**tiny.SHAPE, head_dim=16, rope_parameters=rope)).eval(),
        "mistral": copy.deepcopy(tiny.network("mistral")),
        "qwen2": qwen2(),
        "mixed": qwen2(**mixed),
    }


@pytest.mark.parametrize("name", networks())
def test_it_says_what_transformers_says(name):
    network = networks()[name]
    ids = torch.randint(0, 250, (2, 23))
    with torch.no_grad():
        theirs = network(ids, output_hidden_states=True)
        lean = rebuild(network)
        ours = lean(ids, output_hidden_states=True)
        assert isinstance(lean, FusedLlama)
        torch.testing.assert_close(ours.logits, theirs.logits, atol=1e-5, rtol=1e-5)
        for mine, other in zip(ours.hidden_states, theirs.hidden_states, strict=True):
            torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(lean(ids, logits_to_keep=2).logits, ours.logits[:, -2:], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(network(ids).logits, theirs.logits)  # the old network still works
    attention, qkv = network.model.layers[0].self_attn, lean.blocks[0].qkv
    assert attention.k_proj.weight.data_ptr() == qkv.weight[32 if name != "llama3" else 64 :].data_ptr()  # not doubled


@pytest.mark.parametrize("tree", [Tree((-1, 0, 0, 1, 1, 2)), Tree.chain(5)], ids=["tree", "chain"])
@pytest.mark.parametrize("way", ["C", "packed", "torch"])
@pytest.mark.parametrize("name", networks())
def test_sessions_do_not_notice(monkeypatch, name, way, tree):
    """Uneven rows, drafts in two parts, several steps, paths kept; inside and beyond the windows of some layers."""
    if way == "torch":
        monkeypatch.setattr(build, "compiled", lambda: None)
    network = networks()[name]
    said = []
    ours = rebuild(copy.deepcopy(network))
    if way == "packed":
        pack(ours)
        assert (ours.blocks.stack is not None) == bool(build.compiled() and build.compiled().has_floats())
    for one in (HFModel(network), HFModel(ours)):
        session, numbers = one.session(2, 60), np.random.default_rng(3)
        session.join(0, [7, 8, 9, 10])
        session.join(1, [3, 4])
        for node in ([3, 0], [0, 5], [1, 2], [4, 4]):
            tokens = numbers.integers(0, 250, (2, tree.size))
            parts = [session.extend(tree, tokens, nodes) for nodes in (range(3), range(3, 6))]
            said.append(torch.cat(parts, dim=1))
            session.commit(tree, tokens, node, [1, 2])
    half = len(said) // 2
    for theirs, ours in zip(said[:half], said[half:], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_a_compiler_is_used_where_there_is_one(tmp_path, monkeypatch):
    with_gcc = sys.platform == "linux" and "gcc" in os.path.realpath(shutil.which("cc") or "")
    assert build.compiled() is not None or not with_gcc
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.compiled.__wrapped__() is None
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    assert build.compiled.__wrapped__() is None


def test_half_a_library_left_in_the_cache_is_replaced(tmp_path, monkeypatch):
    if build.compiled() is None:
        return
    whole, half = Path(build.compiled()._name), tmp_path / Path(build.compiled()._name).name
    half.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    assert build.compiled.__wrapped__() is not None
    assert half.stat().st_size == whole.stat().st_size
    assert list(tmp_path.iterdir()) == [half]


def test_the_cache_may_be_the_folder_where_one_stands(tmp_path, monkeypatch):
    if build.compiled() is None:
        return
    shutil.copy(build.compiled()._name, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAFTPROOF_CACHE", ".")
    assert build.compiled.__wrapped__() is not None


def test_layers_that_answer_in_another_precision_are_left_to_torch():
    model, said = HFModel(rebuild(copy.deepcopy(tiny.network("llama")))), []
    for autocast in (False, True):
        session = model.session(1, 60)
        session.join(0, [7, 8, 9, 10])
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            said.append(session.extend(Tree.chain(0), np.array([[10]]), range(1)).float())
    torch.testing.assert_close(said[1], said[0], atol=0.05, rtol=0.05)


@pytest.mark.parametrize("size", [8, 64, 80])
def test_attention_in_c_is_attention(size):
    """Long texts and heads of every kind of size; what is masked counts for nothing."""
    if build.compiled() is None:
        return
    torch.manual_seed(4)
    shape = LayerShape(width=48, heads=6, shared=2, size=size, inner=32)
    block = Block(shape).requires_grad_(False)
    caches = SlotCache(1, 2, 600), SlotCache(1, 2, 600)
    x = torch.randn(2, 5, 48)
    rotation = Rotation.of(torch.tensor([[400, 401, 402, 403, 404], [7, 8, 9, 9, 10]]), frequencies(size))
    mask = torch.zeros(2, 1, 5, 501)
    mask.masked_fill_(torch.rand(mask.shape) < 0.3, torch.finfo(torch.float32).min)
    slots = np.array([[401, 402, 403, 404, 405], [8, 9, 10, 11, 500]])
    for cache in caches:
        layer, filled = cache.layers[0], torch.Generator().manual_seed(0)
        cache.allocate(2, size, torch.zeros(0))
        for buffer in (layer.keys, layer.values):
            buffer.normal_(generator=filled)
    placement, qkv = placed(slots, torch.device("cpu")), block.qkv(x)
    q, k, v = block.split(qkv.clone(), rotation)
    theirs = torch_ops.attend(q, k, v, mask, caches[0].layers[0], placement)
    call, layer = LayerCall(rotation, {FULL: mask}, placement, caches[1].layers), caches[1].layers[0]
    assert native_ops.takes(call, x)
    attention = native_ops.describe(call, rotation, x, shape, 0)
    ours = native.attend(qkv, attention, (layer.keys, layer.values), native.mask(mask))
    torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=2e-6)
    for one, other in zip(caches[0].buffers, caches[1].buffers, strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("window", [None, 3, 16, 30])
@pytest.mark.parametrize("size", [8, 64])
def test_in_c_a_path_of_a_tree_is_read_as_a_straight_text(size, window):
    """Bit for bit, and whatever is in the slots that it does not see: they are not even read."""
    if build.compiled() is None:
        return
    torch.manual_seed(6)
    shape = LayerShape(width=48, heads=6, shared=2, size=size, inner=32)
    text, path = 37, [0, 2, 3, 7]  # tokens before the tree; nodes of it, in slots of their own
    straight, scattered = np.arange(text + 1, text + 5), text + 1 + np.array(path)
    before, qkv = torch.randn(2, text, 2, size), torch.randn(1, 4, 10 * size)
    rotation = Rotation.of(torch.arange(text, text + 4)[None], frequencies(size))
    seen = torch.zeros(4, 50, dtype=torch.bool)  # as the rule has it: the last `window` places of the path
    for i in range(4):
        places = [*range(1, text + 1), *scattered[: i + 1].tolist()]
        seen[i, places[-window:] if window else places] = True
    made = []
    for slots, mask in ((straight, Causal(window)), (scattered, additive(seen[None], torch.float32))):
        cache = SlotCache(1, 1, 49)
        cache.allocate(2, size, torch.zeros(0))
        (layer,) = cache.layers
        for buffer, entries in zip((layer.keys, layer.values), before, strict=True):
            buffer.fill_(torch.nan)
            buffer[0, :, 1 : text + 1] = entries.transpose(0, 1)
        placement = Slots(torch.as_tensor(slots)[None], 50)
        call = LayerCall(rotation, {FULL: mask}, placement, cache.layers)
        assert native_ops.takes(call, qkv)
        attention = native_ops.describe(call, rotation, qkv, shape, 0)
        entries = layer.keys, layer.values
        made.append(native.attend(qkv.clone(), attention, entries, native_ops.as_struct(mask)))
    assert made[0].isfinite().all()
    assert torch.equal(made[0], made[1])


def test_in_c_a_row_alone_and_in_company_is_the_same_bit_for_bit():
    if build.compiled() is None or not build.compiled().has_floats():
        return
    torch.manual_seed(5)
    linear, norm, x = torch.nn.Linear(96, 70), torch.nn.RMSNorm(96, 1e-5), torch.randn(33, 96)
    layer = native.lay_out_float32(linear.weight.detach(), linear.bias.detach())
    together = native.linear(x, layer)
    torch.testing.assert_close(together, linear(x), atol=1e-5, rtol=1e-5)
    normed = native.norm(x[None], norm.weight, 1e-5)[0]
    torch.testing.assert_close(normed, norm(x), atol=1e-6, rtol=1e-6)
    for count in range(1, 9):
        assert torch.equal(native.linear(x[5 : 5 + count], layer), together[5 : 5 + count])
        assert torch.equal(native.norm(x[None, 5 : 5 + count], norm.weight, 1e-5)[0], normed[5 : 5 + count])


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_in_c_a_token_is_read_the_same_with_and_without_guesses_after_it(dtype, tmp_path):
    """Bit for bit through the whole network: what comes later is not just small, it is nothing."""
    if build.compiled() is None or not build.compiled().has_floats():
        return
    model, said = dp.load(str(tiny.save(tmp_path)), dtype=dtype), []
    for length in (0, 1, 5, 19):
        session = model.session(1, 60)
        session.join(0, list(range(40, 60)))
        session.read(1)
        said.append(session.extend(Tree.chain(length), np.arange(length + 1)[None] + 7, range(length + 1))[:, 0])
    assert all(torch.equal(one, said[0]) for one in said)


def test_the_gate_in_c_is_the_gate():
    if build.compiled() is None:
        return
    joint = torch.cat([torch.linspace(-200, 200, 4001), torch.randn(4001)])[None, None]
    gate, up = joint.chunk(2, dim=-1)
    torch.testing.assert_close(native.gate(joint), torch.nn.functional.silu(gate) * up, atol=1e-6, rtol=2e-6)


@pytest.mark.parametrize("way", ["C", "torch"])
def test_packed_weights_say_the_same(monkeypatch, tmp_path, way):
    if way == "torch":
        monkeypatch.setattr(build, "compiled", lambda: None)
    folder = str(tiny.save(tmp_path))
    plain, packed = dp.load(folder, lean=False), dp.load(folder)
    assert not any(isinstance(layer, torch.nn.Linear) for layer in packed.network.modules())
    with torch.no_grad():
        for count in (1, 3, 4, 23):  # below and above the rows that it fills up
            ids = torch.randint(0, 250, (1, count))
            theirs, ours = plain.network(ids).logits, packed.network(ids).logits
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(packed.network.get_output_embeddings().weight, plain.network.lm_head.weight)


def test_it_compiles_as_one_graph():
    """As the fused step calls it on a GPU: slots on the device, no look at any value."""
    lean = rebuild(copy.deepcopy(tiny.network("llama")).to(torch.bfloat16))
    compiled = torch.compile(lean.forward, backend="eager", fullgraph=True, dynamic=False)
    ids, positions = torch.randint(0, 250, (2, 3)), torch.tensor([[4, 5, 6], [1, 2, 3]])
    said = []
    for run in (lean, compiled):
        view = SlotCache(2, 2, 9).at(Slots(positions + 1, 10))
        settings = {"position_ids": positions, "attention_mask": torch.zeros(2, 1, 3, 10, dtype=torch.bfloat16)}
        with torch.no_grad():
            said.append(run(ids, past_key_values=view, logits_to_keep=3, output_hidden_states=True, **settings))
    torch.testing.assert_close(said[1].logits, said[0].logits)


def test_what_it_does_not_know_stays_as_it_is():
    for name in ("qwen3", "gpt2"):
        assert rebuild(tiny.network(name)) is tiny.network(name)
    biased = LlamaForCausalLM(LlamaConfig(**tiny.SHAPE, mlp_bias=True))
    growing = LlamaForCausalLM(
        LlamaConfig(**tiny.SHAPE, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
    )
    for network in (biased, growing):
        assert rebuild(network) is network
