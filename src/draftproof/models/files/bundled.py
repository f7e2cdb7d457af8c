"""Read and write the small models that come with the package.

Their tokenizer is stored compressed, at a sixth of its size, and their matrices as 8-bit integers with a scale for each
row. transformers cannot read that format.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

WEIGHTS = Path(__file__).resolve().parents[2] / "weights"
TOKENIZER = "tokenizer.json.gz"
TEMPLATE = "chat_template.jinja"


def folder(name: str) -> Path:
    """The folder of the bundled model of that name."""
    return WEIGHTS / name


def network(place: Path, precision: Any) -> Any:
    """Load the transformers model that `save_network` wrote."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    from draftproof.models.files.int8_file import restore

    # float32 first, whatever the config asks for: the scales have that precision
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(place), dtype=torch.float32)
    weights = restore(load_file(place / "model.safetensors"))
    missing, unknown = model.load_state_dict(weights, strict=False)
    if unknown or [name for name in missing if name != "lm_head.weight"]:  # tied to the embedding
        raise ValueError(f"{place} does not contain the weights of its config.json")
    model.generation_config = GenerationConfig.from_pretrained(place)
    return model.to(precision).eval()


def fused(place: Path, precision: Any) -> Any:
    """The same network made of fused layers, without transformers; None where it is of another family."""
    from safetensors.torch import load_file

    from draftproof.models.files.int8_file import restore
    from draftproof.models.llama.checkpoint import assemble
    from draftproof.models.llama.config import read_config, read_generation_config
    from draftproof.models.llama.rotary import Rotary

    config, generation_config = read_config(place), read_generation_config(place)
    if config is None or generation_config is None or not config.tie_word_embeddings:
        return None
    weights = restore(load_file(place / "model.safetensors"))
    network = assemble(config, generation_config, lambda name: weights[name].to(precision))
    network.rotary = Rotary(config.frequencies.to(precision))  # `network` rounds them too
    return network


def save_network(network: Any, place: Path) -> None:
    """Write config and weights; the output matrix must be tied to the embedding."""
    from safetensors.torch import save_file

    from draftproof.models.files.int8_file import shrink

    network.config.save_pretrained(place)
    network.generation_config.save_pretrained(place)
    save_file(shrink(dict(network.named_parameters())), place / "model.safetensors")


def tokenizer(place: Path) -> Any:
    """Load the tokenizer that `save_tokenizer` wrote."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer.from_str(gzip.decompress((place / TOKENIZER).read_bytes()).decode("utf-8"))
    names = json.loads((place / "tokenizer_config.json").read_text(encoding="utf-8"))
    fast = PreTrainedTokenizerFast(tokenizer_object=core, **names)
    template = place / TEMPLATE
    fast.chat_template = template.read_text(encoding="utf-8") if template.exists() else None
    return fast


def save_tokenizer(tokenizer: Any, place: Path) -> None:
    """Write vocabulary, special tokens and chat template, compressed; the same input gives the same bytes."""
    text = json.dumps(json.loads(tokenizer.backend_tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
    (place / TOKENIZER).write_bytes(gzip.compress(text.encode("utf-8"), 9, mtime=0))
    names = {name: str(token) for name, token in sorted(tokenizer.special_tokens_map.items()) if isinstance(token, str)}
    (place / "tokenizer_config.json").write_text(json.dumps(names, indent=1) + "\n", encoding="utf-8")
    if tokenizer.chat_template:
        (place / TEMPLATE).write_text(tokenizer.chat_template, encoding="utf-8")
