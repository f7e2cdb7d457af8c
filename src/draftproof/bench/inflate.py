"""A small trained model at the cost of a large one: more width, heads and layers, and the same function.

The first d entries of every hidden vector are the small model's, the others stay zero; new heads, new layers and the
wider part of the MLP compute on real numbers, but their output projections are zero. So a benchmark has real text and
real acceptance at the time and memory of the larger shape. `python -m draftproof.bench.inflate 8b` prints how far
the logits are from the small model's.
"""

from __future__ import annotations

import argparse
import copy
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM

from draftproof.errors import DraftproofError
from draftproof.models.llama.block import LayerShape
from draftproof.models.llama.head import HeadNetwork


class ModelShape(NamedTuple):
    """Sizes of a Llama model; the size of a head is the small model's, because rotary positions depend on it."""

    hidden: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int


SHAPES = {
    "360m": ModelShape(960, 32, 2560, 15, 5),
    "8b": ModelShape(4096, 32, 14336, 64, 16),  # Llama 3.1 with its 32 / 8 heads of 128 cut in half
    "14b": ModelShape(5120, 48, 17408, 80, 16),
}


def shape(name: str) -> ModelShape:
    if name not in SHAPES:
        raise DraftproofError(f"unknown shape {name!r}: use {', '.join(SHAPES)}")
    return SHAPES[name]


@torch.no_grad()
def inflate(network: Any, shape: ModelShape, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
    """A Llama network of that shape whose logits are those of `network`, made on the device in its precision."""
    config = network.config
    _check(config, shape)
    d, D = config.hidden_size, shape.hidden
    wide = copy.deepcopy(config)
    wide.hidden_size, wide.intermediate_size, wide.num_hidden_layers = shape.hidden, shape.intermediate, shape.layers
    wide.num_attention_heads, wide.num_key_value_heads, wide.head_dim = shape.heads, shape.kv_heads, _head(config)
    wide.rms_norm_eps = config.rms_norm_eps * d / D  # the mean square of a vector with D - d zeros is d / D as large
    wide.dtype = dtype
    with torch.device(device):
        large = AutoModelForCausalLM.from_config(wide, dtype=dtype)  # random: what cannot matter stays as it is
    large.generation_config = copy.deepcopy(network.generation_config)

    _embed(large.model.embed_tokens.weight, network.model.embed_tokens.weight)
    if not config.tie_word_embeddings:
        large.lm_head.weight[:, :d] = _like(network.lm_head.weight, large)
    _scale(large.model.norm, network.model.norm, D)
    places = _places(config.num_attention_heads, config.num_key_value_heads, shape)
    for number, layer in enumerate(large.model.layers):
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        if number < config.num_hidden_layers:
            _layer(layer, network.model.layers[number], places, _head(config))
    return large.eval()


def _layer(large: Any, small: Any, places: tuple[list[int], list[list[int]]], size: int) -> None:
    """One layer of the small model in the corner of a large one."""
    d, D = small.mlp.down_proj.weight.shape[0], large.mlp.down_proj.weight.shape[0]
    for name in ("input_layernorm", "post_attention_layernorm"):
        _scale(getattr(large, name), getattr(small, name), D)
    queries, copies = places
    for head, place in enumerate(queries):
        old, new = slice(head * size, head * size + size), slice(place * size, place * size + size)
        large.self_attn.q_proj.weight[new, :d] = _like(small.self_attn.q_proj.weight[old], large)
        large.self_attn.o_proj.weight[:d, new] = _like(small.self_attn.o_proj.weight[:, old], large)
    for head, repeated in enumerate(copies):
        for place in repeated:
            old, new = slice(head * size, head * size + size), slice(place * size, place * size + size)
            large.self_attn.k_proj.weight[new, :d] = _like(small.self_attn.k_proj.weight[old], large)
            large.self_attn.v_proj.weight[new, :d] = _like(small.self_attn.v_proj.weight[old], large)
    i = small.mlp.gate_proj.weight.shape[0]
    large.mlp.gate_proj.weight[:i, :d] = _like(small.mlp.gate_proj.weight, large)
    large.mlp.up_proj.weight[:i, :d] = _like(small.mlp.up_proj.weight, large)
    large.mlp.down_proj.weight[:d, :i] = _like(small.mlp.down_proj.weight, large)


@torch.no_grad()
def inflate_head(head: HeadNetwork, layers: int, shape: ModelShape) -> HeadNetwork:
    """A head for the inflated model of a small one with so many `layers`: the same guesses at the larger cost."""
    old = head.config
    d, D, size = old.shape.width, shape.hidden, old.shape.size
    wide = LayerShape(D, shape.heads, shape.kv_heads, size, shape.intermediate, old.shape.eps * d / D)
    # new layers come after the small model's and leave its state alone; the last tap is after the final norm
    taps = tuple(shape.layers if tap == layers else tap for tap in old.taps)
    large = HeadNetwork(old._replace(shape=wide, taps=taps))
    large.tokens.copy_(head.tokens)
    large.tap_scale[:, :d] = head.tap_scale * (d / D) ** 0.5
    for name in ("norm_state", "norm_embedding", "norm_out"):
        _scale(getattr(large, name), getattr(head, name), D)
    for name, parts in (("fusion", len(taps)), ("join", 2)):
        new, weight = getattr(large, name).weight, getattr(head, name).weight
        new[d:] = 0
        for part in range(parts):
            new[:d, part * D : part * D + d] = weight[:, part * d : part * d + d]
    places = _places(old.shape.heads, old.shape.shared, shape)
    for block, small in zip(large.blocks, head.blocks, strict=True):
        _block(block, small, places)
    return large.eval().requires_grad_(False)


def _block(large: Any, small: Any, places: tuple[list[int], list[list[int]]]) -> None:
    """One fused layer in the corner of a large one."""
    d, D, size, i = small.shape.width, large.shape.width, small.shape.size, small.shape.inner
    for name in ("norm_in", "norm_mlp"):
        _scale(getattr(large, name), getattr(small, name), D)
    for layer in (large.out, large.down):
        layer.weight.zero_()
    new = large.qkv.weight.view(-1, size, D)  # heads of queries, then of keys, then of values
    old = small.qkv.weight.view(-1, size, d)
    queries, copies = places
    for head, place in enumerate(queries):
        new[place, :, :d] = old[head]
        large.out.weight[:d, place * size : place * size + size] = small.out.weight[:, head * size : head * size + size]
    for head, repeated in enumerate(copies):
        for place in repeated:
            new[large.shape.heads + place, :, :d] = old[small.shape.heads + head]
            values = large.shape.heads + large.shape.shared + place
            new[values, :, :d] = old[small.shape.heads + small.shape.shared + head]
    large.gate_up.weight[:i, :d] = small.gate_up.weight[:i]
    large.gate_up.weight[large.shape.inner : large.shape.inner + i, :d] = small.gate_up.weight[i:]
    large.down.weight[:d, :i] = small.down.weight


def _places(heads: int, kv_heads: int, shape: ModelShape) -> tuple[list[int], list[list[int]]]:
    """Where each query head goes, and where each key-value head goes, so that every query still reads its own.

    A query head reads the key-value head of its group; where the new groups are smaller, one is repeated.

    >>> _places(4, 2, ModelShape(0, 0, 0, heads=9, kv_heads=3))
    ([0, 1, 3, 4], [[0], [1]])
    >>> _places(4, 1, ModelShape(0, 0, 0, heads=6, kv_heads=3))
    ([0, 1, 2, 3], [[0, 1]])
    """
    group, wide = heads // kv_heads, shape.heads // shape.kv_heads
    copies = -(-group // wide)
    kv = [list(range(g * copies, g * copies + copies)) for g in range(kv_heads)]
    if kv[-1][-1] >= shape.kv_heads:
        raise DraftproofError(
            f"{heads} heads that read {kv_heads} do not fit into {shape.heads} that read {shape.kv_heads}: add heads"
        )
    return [kv[h // group][h % group // wide] * wide + h % group % wide for h in range(heads)], kv


def _embed(large: torch.Tensor, small: torch.Tensor) -> None:
    large.zero_()
    large[:, : small.shape[1]] = small.to(large.device, large.dtype)


def _scale(large: Any, small: Any, D: int) -> None:
    """A norm that divides by the root of a mean over D entries where the small one had d."""
    d = len(small.weight)
    large.weight[:d] = _like(small.weight.float() * (d / D) ** 0.5, large)


def _like(weight: torch.Tensor, module: Any) -> torch.Tensor:
    there = next(module.parameters())
    return weight.to(there.device, there.dtype)


def _head(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _check(config: Any, shape: ModelShape) -> None:
    if config.model_type != "llama" or config.attention_bias or config.mlp_bias:
        raise DraftproofError(f"only Llama models without biases can be inflated, not {config.model_type!r}")
    small = ModelShape(
        config.hidden_size,
        config.num_hidden_layers,
        config.intermediate_size,
        config.num_attention_heads,
        config.num_key_value_heads,
    )
    short = [name for name, old, new in zip(ModelShape._fields, small, shape, strict=True) if new < old]
    if short:
        raise DraftproofError(f"the shape is smaller than the model in {', '.join(short)}: choose a larger one")


@torch.no_grad()
def blur(network: Any, share: float, seed: int = 0) -> None:
    """Add noise to every matrix, `share` times its own spread: a drafter that agrees less with its original.

    At 0.06 the overlap of SmolLM2 with itself is about 0.75, as of a good small drafter with its target.
    """
    noise = torch.Generator(network.device).manual_seed(seed)
    for weight in network.parameters():
        if weight.ndim == 2:
            random = torch.randn(weight.shape, generator=noise, device=weight.device, dtype=weight.dtype)
            weight += random * (share * weight.std())


@torch.no_grad()
def errors(small: Any, large: Any, ids: list[int]) -> tuple[float, float]:
    """Over a text: the largest difference of two logits, and the mean total variation of the laws."""
    one, two = (
        network(torch.tensor([ids], device=network.device)).logits[0].float().cpu() for network in (small, large)
    )
    variation = (one.softmax(-1) - two.softmax(-1)).abs().sum(-1) / 2
    return float((one - two).abs().max()), float(variation.mean())


def main() -> None:
    from draftproof.models import load
    from draftproof.models.llama.int8 import CALIBRATION

    parser = argparse.ArgumentParser(description="How equal the large model is.")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    small = load(options.target, lean=False)
    dtype = getattr(torch, options.dtype)
    large = inflate(small.network, shape(options.shape), dtype, str(small.network.device.type))
    count = sum(weight.numel() for weight in large.parameters())
    print(f"{options.target} as {options.shape}: {count / 1e9:.2f} billion weights in {options.dtype}")
    worst, variation = errors(small.network, large, small.tokenizer(CALIBRATION)["input_ids"])
    print(f"logits differ by at most {worst:.2g}, laws by {variation:.2g} in total variation on average")


if __name__ == "__main__":
    main()
