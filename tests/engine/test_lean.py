"""The lean network is the transformers network, called as that is."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

import draftproof as dp
from draftproof.draft import Tree
from draftproof.models.hf import HFModel
from draftproof.models.lean import Lean, rebuild
from tests import tiny

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
        assert isinstance(lean, Lean)
        torch.testing.assert_close(ours.logits, theirs.logits, atol=1e-5, rtol=1e-5)
        for mine, other in zip(ours.hidden_states, theirs.hidden_states, strict=True):
            torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(lean(ids, logits_to_keep=2).logits, ours.logits[:, -2:], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(network(ids).logits, theirs.logits)  # the old network still works
    attention, qkv = network.model.layers[0].self_attn, lean.blocks[0].qkv
    assert attention.k_proj.weight.data_ptr() == qkv.weight[32 if name != "llama3" else 64 :].data_ptr()  # not doubled


@pytest.mark.parametrize("name", networks())
def test_sessions_do_not_notice(name):
    """Uneven rows, trees drafted level by level, several steps, paths kept; inside and beyond the window."""
    network = networks()[name]
    tree = Tree((-1, 0, 0, 1, 1, 2))
    said = []
    for one in (HFModel(copy.deepcopy(network)), HFModel(rebuild(network))):
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


def test_packed_weights_say_the_same(tmp_path):
    folder = str(tiny.save(tmp_path))
    plain, packed = dp.load(folder, lean=False), dp.load(folder)
    assert not any(isinstance(layer, torch.nn.Linear) for layer in packed.network.modules())
    with torch.no_grad():
        for count in (1, 3, 4, 23):  # below and above the rows that it fills up
            ids = torch.randint(0, 250, (1, count))
            theirs, ours = plain.network(ids).logits, packed.network(ids).logits
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(packed.network.get_output_embeddings().weight, plain.network.lm_head.weight)


def test_what_it_does_not_know_stays_as_it_is():
    for name in ("qwen3", "gpt2"):
        assert rebuild(tiny.network(name)) is tiny.network(name)
    biased = LlamaForCausalLM(LlamaConfig(**tiny.SHAPE, mlp_bias=True))
    growing = LlamaForCausalLM(
        LlamaConfig(**tiny.SHAPE, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
    )
    for network in (biased, growing):
        assert rebuild(network) is network
