"""config.json of a Llama-family model, read without transformers; None for one that has anything else in it.

What transformers assumes where a file is silent is written down here for the few values that a file may leave out. A
file that leaves out more, or that says something this module does not know, is left to transformers.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from draftproof.models.files.json_file import read_json
from draftproof.models.llama.block import LayerShape
from draftproof.models.llama.masks import FULL, SLIDING
from draftproof.models.llama.rotary import frequencies

ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}
SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings"),
    *("num_attention_heads", "num_key_value_heads"),
)
FOREIGN = ("quantization_config", "compression_config", "auto_map", "partial_rotary_factor")  # other roads or functions
OTHER_FILES = ("adapter_config.json",)  # transformers would load what is beside the weights


class FolderConfig(SimpleNamespace):
    """The values of config.json as attributes, with the names that transformers gives them."""

    is_encoder_decoder = False

    def get_text_config(self, *args: Any, **kwargs: Any) -> FolderConfig:
        return self

    @property
    def shape(self) -> LayerShape:
        """Sizes of its layers."""
        return LayerShape(
            self.hidden_size,
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim,
            self.intermediate_size,
            self.rms_norm_eps,
            bias=self.model_type == "qwen2",
        )

    @property
    def windows(self) -> dict[str, int | None]:
        """Window of its only kind of attention."""
        return {FULL: None} if self.sliding_window is None else {SLIDING: self.sliding_window}

    @property
    def frequencies(self) -> torch.Tensor:
        """Of rotary positions, [head_dim / 2]."""
        return ROTATIONS[self.rope_parameters["rope_type"]](self.head_dim, self.rope_parameters)


def read_config(folder: Path) -> FolderConfig | None:
    """The config of a model that fused layers can be, or None."""
    raw = read_json(folder / "config.json")
    family = raw.get("model_type")
    if family not in ARCHITECTURES or raw.get("architectures") != [ARCHITECTURES[family]]:
        return None
    if any(raw.get(name) is not None for name in FOREIGN) or any((folder / name).exists() for name in OTHER_FILES):
        return None
    sizes = [raw.get(name) for name in SIZES] + [raw.get("head_dim", 1)]
    if not all(type(size) is int and size > 0 for size in sizes) or type(raw.get("rms_norm_eps")) is not float:
        return None
    rope = _rope(raw)
    plain = raw.get("hidden_act") == "silu" and not raw.get("attention_bias") and not raw.get("mlp_bias")
    if rope is None or not plain or not _has_one_window(raw):
        return None
    window = raw.get("sliding_window") if family == "mistral" else None
    size = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
    tied = bool(raw.get("tie_word_embeddings", False))
    own = {"head_dim": size, "tie_word_embeddings": tied, "sliding_window": window, "rope_parameters": rope}
    return FolderConfig(**{**raw, **own, "_name_or_path": str(folder)})


def read_generation_config(folder: Path) -> SimpleNamespace | None:
    """generation_config.json, or what config.json says in its place; None where neither names the end tokens."""
    raw = read_json(folder / "generation_config.json")
    if not raw:
        config = read_json(folder / "config.json")
        raw = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in config}
    return SimpleNamespace(**raw) if "eos_token_id" in raw else None


def _has_one_window(raw: dict[str, Any]) -> bool:
    """Whether all layers attend alike, and it is certain how far."""
    kinds = set(raw.get("layer_types") or ())
    if raw["model_type"] == "mistral":
        return "sliding_window" in raw and not kinds
    if raw["model_type"] == "qwen2":
        return not raw.get("use_sliding_window") and kinds <= {FULL}
    return raw.get("sliding_window") is None and not kinds


def _rope(raw: dict[str, Any]) -> dict[str, Any] | None:
    """Parameters of rotary positions as newer files have them; older ones have them in two places."""
    rope = {"rope_theta": raw.get("rope_theta"), **(raw.get("rope_parameters") or raw.get("rope_scaling") or {})}
    rope.setdefault("rope_type", rope.get("type", "default"))
    needed = {"rope_theta", *SCALING.get(str(rope["rope_type"]), ("unknown",))}
    given = {name for name, value in rope.items() if type(value) in (int, float)}
    outside = raw.get("original_max_position_embeddings") is not None  # transformers prefers that one
    strange = rope.get("partial_rotary_factor") is not None or outside or not needed <= given
    return None if strange else rope


def _linear(size: int, rope: dict[str, Any]) -> torch.Tensor:
    scaled: torch.Tensor = frequencies(size, rope["rope_theta"]) / rope["factor"]
    return scaled


def _llama3(size: int, rope: dict[str, Any]) -> torch.Tensor:
    """Long waves are stretched by `factor`, short ones stay, those between are mixed."""
    plain, factor, low, high, context = (
        frequencies(size, rope["rope_theta"]),
        *(rope[name] for name in SCALING["llama3"]),
    )
    wavelength = 2 * math.pi / plain
    scaled = torch.where(wavelength > context / low, plain / factor, plain)
    smooth = (context / wavelength - low) / (high - low)
    mixed = (1 - smooth) * scaled / factor + smooth * scaled
    between = ~(wavelength < context / high) * ~(wavelength > context / low)
    return torch.where(between, mixed, scaled)


SCALING = {  # numbers that each kind needs
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
ROTATIONS = {"default": lambda size, rope: frequencies(size, rope["rope_theta"]), "linear": _linear, "llama3": _llama3}
