"""Targets and drafters with random weights: each family in its real code, small enough for hundreds of texts."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from draftproof.models.drafters.head import SHIPPED, HeadModel
from draftproof.models.drafters.text_draft import TextDrafter
from draftproof.models.hf import HFModel
from draftproof.models.llama import head as headnet
from draftproof.models.llama.block import LayerShape
from draftproof.models.llama.head import HeadConfig, HeadNetwork
from draftproof.models.llama.rebuild import rebuild

CONTEXT = 8448
WIDTH, LAYERS, HEADS, SHARED, SIZE, INNER = 64, 2, 4, 2, 16, 96
WINDOW = 64  # of sliding attention, shorter than most prompts
SHARPNESS = 2.5  # standard deviation of the logits: neither flat laws nor certain ones
WIDE = "smollm2 shape"  # the default target's shape, for the head that was trained for it
FAMILIES = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    WIDE: "LlamaForCausalLM",
}
OTHER = "other tokenizer"
MERGES = [("t", "h"), ("e", "r"), ("i", "n"), ("th", "e")]


@cache
def tokenizer(merged: bool = False) -> Any:
    """One token a byte; or with a few pairs merged, which is another vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *("".join(pair) for pair in MERGES)] if merged else alphabet
    core = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=MERGES if merged else []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken("<end>", special=True), AddedToken("<pad>", special=True)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", pad_token="<pad>")


def _config(family: str) -> Any:
    """The family's own config, small."""
    kind = FAMILIES.get(family, FAMILIES["llama"])
    if kind == "GPT2LMHeadModel":
        sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": CONTEXT}
        return transformers.GPT2Config(vocab_size=258, bos_token_id=None, eos_token_id=None, **sizes)
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer(family == OTHER)),
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": SHARED,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
    }
    if family == WIDE:
        wide = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
        shape |= {**wide, "num_attention_heads": 9, "num_key_value_heads": 3}
    elif family in ("qwen3", "gemma3", "mistral"):
        shape["head_dim"] = SIZE
    shape |= {"sliding_window": WINDOW} if family in ("mistral", "gemma3") else {}
    shape |= {"layer_types": ["sliding_attention", "full_attention"]} if family == "gemma3" else {}
    named = {"gemma3": "Gemma3TextConfig"}.get(family) or kind.removesuffix("ForCausalLM") + "Config"
    ends = dict.fromkeys(("bos_token_id", "eos_token_id"))
    return getattr(transformers, named)(**shape, **ends, pad_token_id=0)


@cache
def network(family: str, noise: float = 0.0) -> Any:
    """transformers' network on the CPU in float32; with noise in its weights, a drafter that is sometimes right."""
    torch.manual_seed(7)
    made = getattr(transformers, FAMILIES.get(family, FAMILIES["llama"]))(_config(family)).eval().requires_grad_(False)
    for weight in made.parameters():
        if weight.ndim > 1 and family != WIDE:
            weight.mul_(3)
    if family == "gpt2":
        made.lm_head.weight = torch.nn.Parameter(made.lm_head.weight.clone(), requires_grad=False)
    scores = made(torch.arange(40)[None] % 250).logits
    made.get_output_embeddings().weight.mul_(SHARPNESS / scores.std())
    for weight in made.parameters() if noise else ():
        if weight.ndim > 1:
            weight.add_(torch.randn_like(weight) * noise * weight.std())
    return made


@cache
def transformers_network(family: str, dtype: str, device: str, noise: float = 0.0) -> Any:
    """A copy of it elsewhere, in another precision."""
    return copy.deepcopy(network(family, noise)).to(getattr(torch, dtype)).to(device)


@cache
def target(family: str, dtype: str, device: str, noise: float = 0.0) -> HFModel:
    """The model as `draftproof.load` would have it."""
    made = copy.deepcopy(transformers_network(family, dtype, device, noise))
    words = None if family == WIDE else tokenizer(family == OTHER)
    return HFModel(rebuild(made), words, f"{family}{' with noise' if noise else ''}")


@cache
def drafter(kind: str, family: str, dtype: str, device: str) -> Any:
    """A drafter for the target of this family, as `draft=` takes it."""
    host = target(family, dtype, device)
    match kind:
        case "none":
            return None
        case "model":
            return target(family, dtype, device, 0.1)
        case "head":
            return HeadModel(host, _head(family), "head")
        case "ngram|head":
            from draftproof.models.drafters.fallback import Fallback
            from draftproof.models.drafters.ngram import NGram

            return Fallback([NGram(host.vocabulary), drafter("head", family, dtype, device)])
        case "text:":
            return TextDrafter(host, target(OTHER, dtype, device))
        case "other tokenizer":
            return target(OTHER, dtype, device)
    return kind  # ngram, cache


def _head(family: str) -> HeadNetwork:
    """The trained head for the shape that it was trained for; random weights for the others."""
    if family == WIDE:
        made = headnet.load(SHIPPED)
        made.config = made.config._replace(origin=())  # here it drafts for weights that it has never seen
        return made
    torch.manual_seed(5)
    shape = LayerShape(WIDTH, HEADS, SHARED, SIZE, INNER)
    made = HeadNetwork(HeadConfig(shape, 1, (0, 1, 2), 10000.0, 128)).eval().requires_grad_(False)
    for weight in made.parameters():
        weight.mul_(2 if weight.ndim > 1 else 1)
    made.tokens.copy_(torch.arange(0, 256, 2))
    return made
