"""Tiny transformers models with random weights, and a byte tokenizer: real code paths, nothing to download."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from draftproof.models.hf import HFModel

VOCABULARY = 258  # 256 bytes, <end>, <pad>
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "bos_token_id": None,
    "eos_token_id": 256,
    "pad_token_id": 257,
}
CHUNK = 5  # of llama4's attention, shorter than the texts of the tests
WINDOW = 7  # of Mistral's attention, shorter than the texts of the tests


@cache
def tokenizer() -> Any:
    """One token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken("<end>", special=True), AddedToken("<pad>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", pad_token="<pad>")


@cache
def network(family: str, seed: int = 0) -> Any:
    """Random weights, large enough that the laws are far from flat."""
    torch.manual_seed(seed)
    if family == "llama":
        made = LlamaForCausalLM(LlamaConfig(**SHAPE))
    elif family == "qwen3":
        made = Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8))
    elif family == "mistral":
        made = MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=WINDOW))
    elif family == "llama4":
        made = Llama4ForCausalLM(
            Llama4TextConfig(
                **{**SHAPE, "num_hidden_layers": 4},  # three layers of chunks, one that sees all
                head_dim=8,
                intermediate_size_mlp=48,
                num_local_experts=2,
                interleave_moe_layer_step=2,
                attention_chunk_size=CHUNK,
            )
        )
    else:
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 96}
        made = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, bos_token_id=None, eos_token_id=256, **sizes))
    with torch.no_grad():
        for weight in made.parameters():
            weight.mul_(3)
    return made.eval()


def model(family: str = "llama", seed: int = 0) -> HFModel:
    return HFModel(network(family, seed), tokenizer(), f"tiny-{family}")


def save(folder: Path, seed: int = 0) -> Path:
    """A model folder as a user would have it."""
    network("llama", seed).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
