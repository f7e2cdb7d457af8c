"""The inflated model is the small one, at the cost of the large one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import draftproof as dp
from draftproof import Tree
from draftproof.bench.inflate import SHAPES, ModelShape, blur, errors, inflate, inflate_head, shape
from draftproof.models.base import sessions
from draftproof.models.drafters.head import HeadModel
from draftproof.models.hf import HFModel
from draftproof.models.llama.block import LayerShape
from draftproof.models.llama.head import HeadConfig, HeadNetwork
from tests.support import tiny

IDS = [72, 101, 108, 108, 111, 44, 32, 119, 256, 0, 111, 114]


def small(heads=4, kv_heads=2, tied=False):
    """Random weights, norms that are not all ones, and an epsilon large enough to be seen."""
    torch.manual_seed(1)
    sizes = {**tiny.SHAPE, "hidden_size": 8 * heads, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    network = LlamaForCausalLM(LlamaConfig(**sizes, rms_norm_eps=1e-2, tie_word_embeddings=tied)).eval()
    with torch.no_grad():
        for name, weight in network.named_parameters():
            weight.mul_(1 + torch.rand_like(weight)) if "norm" in name else weight.mul_(4)
    return network


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("heads", "wide"),
    [
        ((4, 2), ModelShape(96, 5, 80, 16, 4)),  # groups of 2 become groups of 4
        ((9, 3), ModelShape(80, 2, 48, 16, 4)),  # as SmolLM2: nine heads on three
        ((6, 1), ModelShape(56, 3, 49, 8, 4)),  # smaller groups: the key-value head is repeated
    ],
)
def test_logits_are_the_small_models(heads, wide, tied):
    network = small(*heads, tied)
    large = inflate(network, wide)
    worst, variation = errors(network, large, IDS)
    assert worst < 1e-3
    assert variation < 1e-5
    assert large.config.num_hidden_layers == len(large.model.layers) == wide.layers
    first, last = large.model.layers[0], large.model.layers[-1]
    assert first.mlp.down_proj.weight.shape == (wide.hidden, wide.intermediate)
    for weight in (last.mlp.gate_proj.weight, last.self_attn.q_proj.weight, first.self_attn.k_proj.weight):
        assert (weight != 0).float().mean() > 0.99  # the new part is at work, not a block of zeros


@pytest.mark.parametrize("part", ["norm", "o_proj", "eps"])
def test_each_correction_is_needed(part):
    """What the comparison above would catch."""
    network = small()
    large = inflate(network, ModelShape(96, 4, 80, 16, 4))
    with torch.no_grad():
        if part == "norm":
            large.model.layers[0].input_layernorm.weight.mul_((96 / 32) ** 0.5)
        elif part == "o_proj":
            large.model.layers[3].self_attn.o_proj.weight.normal_(std=0.02)
        else:
            large.model.norm.variance_epsilon *= 3
    assert errors(network, large, IDS)[0] > 1e-3


def test_it_is_built_in_its_precision_and_reads_positions_in_full():
    network = small()
    large = inflate(network, ModelShape(64, 3, 64, 8, 2), torch.bfloat16)
    assert {weight.dtype for weight in large.parameters()} == {torch.bfloat16}
    assert large.model.rotary_emb.inv_freq.dtype == torch.float32
    assert errors(network, large, IDS)[1] < 0.2


def test_it_generates_what_the_small_one_does():
    network = tiny.network("llama")
    settings = {"draft": None, "sampling": dp.Sampling(temperature=0), "max_new_tokens": 12}
    texts = [
        dp.generate(HFModel(one, tiny.tokenizer()), "abcab", **settings).tokens
        for one in (network, inflate(network, ModelShape(64, 3, 64, 8, 2)))
    ]
    assert texts[0] == texts[1]


def test_transformers_writes_the_same_with_a_cache_of_fixed_size():
    """It is a peer of the benchmarks; kinds of layers, which Llama has not, would make it prepare other masks."""
    network = tiny.network("llama")
    settings = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    texts = [
        one.generate(torch.tensor([IDS]), **settings, **how).tolist()
        for one, how in (
            (network, {}),
            (inflate(network, ModelShape(64, 3, 64, 8, 2)), {"cache_implementation": "static"}),
        )
    ]
    assert texts[0] == texts[1]


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(dp.DraftproofError, match="unknown shape '9b': use 360m, 8b, 14b"):
        shape("9b")
    with pytest.raises(dp.DraftproofError, match="smaller than the model in layers, kv_heads"):
        inflate(tiny.network("llama"), ModelShape(64, 1, 64, 8, 1))
    with pytest.raises(dp.DraftproofError, match="9 heads that read 3 do not fit into 10 that read 5: add heads"):
        inflate(small(9, 3), ModelShape(80, 2, 64, 10, 5))
    with pytest.raises(dp.DraftproofError, match="only Llama models without biases can be inflated, not 'qwen3'"):
        inflate(tiny.network("qwen3"), SHAPES["360m"])


def test_a_blurred_drafter_agrees_less_the_more_it_is_blurred():
    original = small()
    variation = []
    for share in (0.02, 0.3):
        drafter = small()
        blur(drafter, share)
        variation.append(errors(original, drafter, IDS)[1])
    assert 0 < variation[0] < variation[1]


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
@pytest.mark.parametrize("layers", [1, 2])
def test_an_inflated_head_guesses_the_same(heads, layers):
    """Beside the inflated target, whose last layers are new, over a step with guesses of its own."""
    wide, tree, tokens = ModelShape(96, 5, 80, 16, 4), Tree.chain(2), np.array([[IDS[-1], 44, 45]])
    network = small(tied=True)
    torch.manual_seed(2)
    config = HeadConfig(LayerShape(32, *heads, 8, 40, eps=1e-2), layers, (1, 2), 10000.0, 100)
    head = HeadNetwork(config)
    head.tokens.copy_(torch.arange(100) * 2)
    with torch.no_grad():
        for weight in head.parameters():
            weight.mul_(1 + torch.rand_like(weight)) if weight.ndim == 1 else weight.mul_(2)
    logits = []
    for target, drafter in ((network, head), (inflate(network, wide), inflate_head(head, 2, wide))):
        model = HeadModel(HFModel(target), drafter)
        opened, (opened_head,) = sessions(model.target, [model], 1, 40)
        session = opened_head.session
        for one in (opened, session):
            one.join(0, IDS)
        logits.append(torch.cat([session.extend(tree, tokens, level) for level in tree.levels], dim=1))
    assert drafter.config.taps == (1, 5)
    torch.testing.assert_close(logits[0], logits[1], atol=1e-4, rtol=1e-4)
