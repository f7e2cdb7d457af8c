"""A Llama-family network read from config.json and safetensors straight into fused layers, without transformers.

`open_folder` knows the folders whose every file it understands; transformers reads the others, and `rebuild` converts
what it has read. Weights are mapped, not copied, so each is read from the disk once, where it is laid out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from draftproof.models.files import packed
from draftproof.models.files.json_file import read_json
from draftproof.models.llama.block import Block
from draftproof.models.llama.config import FolderConfig, read_config, read_generation_config
from draftproof.models.llama.network import FusedLlama, NetworkSettings
from draftproof.models.llama.rotary import Rotary

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
STORED = ("F64", "F32", "F16", "BF16")
EMBED, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
NORMS = ("input_layernorm", "post_attention_layernorm")
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
OUT, DOWN = "self_attn.o_proj", "mlp.down_proj"


class Checkpoint(NamedTuple):
    """A folder that holds exactly the weights its config.json describes."""

    config: FolderConfig
    generation_config: SimpleNamespace
    files: dict[str, Path]  # of each weight

    def network(self, precision: torch.dtype) -> FusedLlama:
        """The network in that precision, on the CPU."""
        opened: dict[Path, Any] = {path: safe_open(path, framework="pt") for path in set(self.files.values())}

        def weight(name: str) -> torch.Tensor:
            return packed.weight(opened[self.files[name]], name).to(precision)

        return assemble(self.config, self.generation_config, weight)


def open_folder(folder: Path) -> Checkpoint | None:
    """The network in a folder, or None where anything in it is not understood."""
    config, generation_config = read_config(folder), read_generation_config(folder)
    if config is None or generation_config is None:
        return None
    expected, files = dict(_shapes(config)), {}
    try:
        for path in _files(folder):
            with safe_open(path, framework="pt") as file:
                blocks = packed.formats(file)
                for name in file.keys():  # noqa: SIM118 (it is no dictionary)
                    part = file.get_slice(name)
                    shape, stored = tuple(part.get_shape()), part.get_dtype() in STORED
                    if name in blocks:  # the last axis holds bytes
                        shape, stored = (*shape[:-1], *expected.get(name, (0,))[-1:]), True
                    if expected.get(name) != shape or not stored:
                        return None
                    files[name] = path
    except (OSError, SafetensorError):
        return None
    return Checkpoint(config, generation_config, files) if files.keys() == expected.keys() else None


def assemble(config: FolderConfig, generation_config: Any, weight: Callable[[str], torch.Tensor]) -> FusedLlama:
    """The network whose weights `weight` returns by their names in transformers' networks."""
    table: Any = nn.Embedding  # from weights: to initialise some on "meta" would import torch's compiler
    embed = table.from_pretrained(weight(EMBED), freeze=False)
    head = nn.Linear(config.hidden_size, config.vocab_size, bias=False, device="meta")
    head.weight = embed.weight if config.tie_word_embeddings else nn.Parameter(weight(HEAD))
    norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps, device="meta")
    norm.weight = nn.Parameter(weight(NORM))
    blocks = [_block(config, f"model.layers.{i}", weight) for i in range(config.num_hidden_layers)]
    settings = NetworkSettings(config, generation_config, config.windows)
    return FusedLlama(settings, embed, blocks, norm, head, Rotary(config.frequencies))


def _block(config: FolderConfig, layer: str, weight: Callable[[str], torch.Tensor]) -> Block:
    with torch.device("meta"):
        block = Block(config.shape)
    parts = {block.norm_in: NORMS[:1], block.norm_mlp: NORMS[1:], block.out: (OUT,), block.down: (DOWN,)}
    for module, names in {**parts, block.qkv: QKV, block.gate_up: GATE_UP}.items():
        for kind in ("weight", "bias") if module is block.qkv and config.shape.bias else ("weight",):
            pieces = [weight(f"{layer}.{name}.{kind}") for name in names]
            setattr(module, kind, nn.Parameter(torch.cat(pieces) if len(pieces) > 1 else pieces[0]))
    return block


def _shapes(config: FolderConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every weight."""
    width, heads, shared, size, inner, *_ = config.shape
    yield EMBED, (config.vocab_size, width)
    yield NORM, (width,)
    if not config.tie_word_embeddings:
        yield HEAD, (config.vocab_size, width)
    rows = dict(zip((*QKV, *GATE_UP), (heads * size, shared * size, shared * size, inner, inner), strict=True))
    for layer in (f"model.layers.{i}" for i in range(config.num_hidden_layers)):
        yield from ((f"{layer}.{name}.weight", (width,)) for name in NORMS)
        yield from ((f"{layer}.{name}.weight", (count, width)) for name, count in rows.items())
        yield f"{layer}.{OUT}.weight", (width, heads * size)
        yield f"{layer}.{DOWN}.weight", (width, inner)
        if config.shape.bias:
            yield from ((f"{layer}.{name}.bias", (rows[name],)) for name in QKV)


def _files(folder: Path) -> list[Path]:
    """The files of the weights: one, or those that an index names."""
    for name in (WEIGHTS, packed.FILE):
        if (folder / name).exists():
            return [folder / name]
    named = read_json(folder / INDEX).get("weight_map")
    return [folder / str(name) for name in sorted(set(named.values()))] if isinstance(named, dict) else []
