"""Networks read without transformers are the ones that transformers reads, to the last bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config

import draftproof as dp
from draftproof.models import reading
from draftproof.models.files import bundled
from draftproof.models.hf import HFModel
from draftproof.models.llama.checkpoint import open_folder
from draftproof.models.llama.network import FusedLlama
from draftproof.models.llama.rebuild import rebuild
from tests.support import tiny

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
CONFIGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, {}),
    "llama, tied, wide heads": (LlamaConfig, {"tie_word_embeddings": True, "head_dim": 16}),
    "llama, linear": (LlamaConfig, {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 5e3}}),
    "llama, llama3": (LlamaConfig, {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, **LLAMA3}}),
    "mistral": (MistralConfig, {"sliding_window": None}),
    "mistral, window": (MistralConfig, {"sliding_window": tiny.WINDOW}),
    "qwen2": (Qwen2Config, {}),
}
IDS = torch.tensor([[*range(40, 60)]])


def saved(folder: Path, kind: str = "llama", **how: Any) -> Path:
    make, changes = CONFIGS[kind]
    torch.manual_seed(1)
    network = AutoModelForCausalLM.from_config(make(**{**tiny.SHAPE, **changes}))
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)  # biases too
    network.save_pretrained(folder, **how)
    return folder


def changed(folder: Path, **values: Any) -> Path:
    """The folder with other values in its config.json; None takes one away."""
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    return folder


def same(folder: Path, precision: torch.dtype = torch.float32) -> None:
    """Asserts that both roads lead to the same network."""
    found = open_folder(folder)
    assert found is not None
    ours, theirs = HFModel(found.network(precision)), HFModel(rebuild(transformers_network(folder, precision)))
    assert isinstance(ours.network, FusedLlama)
    assert isinstance(theirs.network, FusedLlama)
    with torch.no_grad():
        said = [model.network(IDS, output_hidden_states=True) for model in (ours, theirs)]
    assert said[0].logits.dtype == precision
    assert torch.equal(said[0].logits, said[1].logits)
    assert all(map(torch.equal, *(one.hidden_states for one in said)))
    for name in ("name", "vocabulary", "context", "end_tokens", "windows", "layers", "width", "facts"):
        assert getattr(ours, name) == getattr(theirs, name), name


def transformers_network(folder: Path, precision: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=precision)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_folder_is_read_as_transformers_reads_it(tmp_path, kind):
    for precision in (torch.float32, torch.bfloat16):
        same(saved(tmp_path, kind), precision)


def test_weights_may_be_in_several_files_and_in_another_precision(tmp_path):
    folder = saved(tmp_path, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    same(folder)
    half = saved(tmp_path / "half")
    save_file({n: w.half() for n, w in load_file(half / "model.safetensors").items()}, half / "model.safetensors")
    same(half)


def test_older_files_say_rotary_positions_in_two_places(tmp_path):
    folder = saved(tmp_path)
    same(changed(folder, rope_parameters=None, rope_theta=300.0))
    same(changed(folder, rope_scaling={"type": "linear", "factor": 2.0}))
    same(changed(folder, rope_scaling={"rope_type": "llama3", **LLAMA3}))


def test_end_tokens_are_those_of_the_generation_config(tmp_path):
    folder = saved(tmp_path)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 9, 5000], "temperature": 0.6}')
    same(folder)
    found = open_folder(folder)
    assert found is not None
    assert HFModel(found.network(torch.float32)).end_tokens == (7, 9)
    assert found.generation_config.temperature == 0.6
    (folder / "generation_config.json").unlink()
    same(folder)


NOT_OURS: dict[str, dict[str, Any]] = {
    "another family": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    "another task": {"architectures": ["LlamaForSequenceClassification"]},
    "quantised": {"quantization_config": {"quant_method": "fp8"}},
    "code of its own": {"auto_map": {"AutoModelForCausalLM": "model.Model"}},
    "another activation": {"hidden_act": "gelu"},
    "biases": {"attention_bias": True},
    "more biases": {"mlp_bias": True},
    "windows": {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 7},
    "a window": {"sliding_window": 7},
    "positions that depend on the length": {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2}
    },
    "positions of a part": {"partial_rotary_factor": 0.5},
    "no theta": {"rope_parameters": {"rope_type": "default"}},
    "no heads": {"num_key_value_heads": None},
    "other sizes": {"intermediate_size": 64},
    "fewer layers": {"num_hidden_layers": 1},
    "tied": {"tie_word_embeddings": True},
    "no end token": {"eos_token_id": None},
}


@pytest.mark.parametrize("what", NOT_OURS)
def test_what_is_not_understood_is_left_to_transformers(tmp_path, what):
    folder = saved(tmp_path)
    (folder / "generation_config.json").unlink()
    assert open_folder(folder) is not None
    assert open_folder(changed(folder, **NOT_OURS[what])) is None


def test_files_that_are_not_understood_are_left_to_transformers(tmp_path):
    folder = saved(tmp_path)
    whole = load_file(folder / "model.safetensors")
    for weights in (
        {**whole, "extra": torch.zeros(2)},
        {name: weight for name, weight in whole.items() if name != "model.norm.weight"},
        {**whole, "model.norm.weight": torch.zeros(32, dtype=torch.int8)},
    ):
        save_file(weights, folder / "model.safetensors")
        assert open_folder(folder) is None
    (folder / "model.safetensors").write_bytes(b"nothing of this kind")
    assert open_folder(folder) is None
    (folder / "model.safetensors").unlink()
    assert open_folder(folder) is None
    save_file(whole, folder / "model.safetensors")
    assert open_folder(folder) is not None
    (folder / "adapter_config.json").write_text("{}")
    assert open_folder(folder) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_the_packaged_model_is_the_one_that_transformers_reads(dtype, monkeypatch):
    ours = dp.load("tiny", dtype=dtype, device="cpu")
    monkeypatch.setattr(reading, "_fused", lambda *arguments: None)
    theirs = dp.load("tiny", dtype=dtype, device="cpu")
    with torch.no_grad():
        assert torch.equal(ours.network(IDS).logits, theirs.network(IDS).logits)
    assert (ours.end_tokens, ours.facts) == (theirs.end_tokens, theirs.facts)
    assert bundled.fused(bundled.folder("tiny"), torch.float32).config.rope_parameters["rope_theta"] == 10000.0


def test_a_network_of_transformers_stays_one_where_asked(tmp_path):
    folder = tiny.save(tmp_path)
    assert type(dp.load(folder).network) is FusedLlama
    assert type(dp.load(folder, lean=False).network).__name__ == "LlamaForCausalLM"
