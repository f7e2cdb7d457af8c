"""Models by name, and one line of help when that fails."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    AutoConfig,
    CLIPVisionConfig,
    LlamaConfig,
    LlamaForSequenceClassification,
    LlamaModel,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MambaConfig,
    MambaForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    Qwen2Config,
    Qwen2ForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
)

import draftproof as dp
from draftproof import models
from draftproof.models.base import ModelFacts
from draftproof.models.files import bundled
from draftproof.native import build
from draftproof.paths import cache_folder
from tests.support import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("tiny"))


def test_a_folder_loads_and_writes(folder):
    model = dp.load(str(folder))
    assert (model.vocabulary, model.context, model.end_tokens) == (tiny.VOCABULARY, 96, (256,))
    out = dp.generate(model, "hello", max_new_tokens=8, seed=1)
    assert out.tokens == dp.generate(tiny.model(), "hello", max_new_tokens=8, seed=1).tokens
    assert dp.generate(str(folder), "hello", draft=str(folder), max_new_tokens=8, seed=1).trace.tokens_per_call > 1
    assert dp.generate(folder, "hello", draft=[folder], max_new_tokens=8).trace.tokens_per_call > 1  # a Path
    assert dp.Engine(folder, draft=folder).add_request("hello", max_new_tokens=8).prompt


def test_precision_is_asked_for_by_name(folder):
    assert str(dp.load(str(folder), dtype="bfloat16").network.dtype) == "torch.bfloat16"
    for name in ("int3", "float8_e4m3fn", "Tensor"):
        with pytest.raises(dp.DraftproofError, match=f"unknown dtype '{name}': use float32"):
            dp.load(str(folder), dtype=name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smolm2", "unknown model 'smolm2': did you mean 'smollm2'"),
        ("./no/such/folder", "no model at ./no/such/folder: check the path"),
        ("no/such/folder", "no model at no/such/folder: check the path"),
        (__file__, "is a file, but no model: give a folder or a .gguf file"),
        ("missing.gguf", "no model at missing.gguf: check the path"),
    ],
)
def test_unknown_names_get_a_hint(name, message):
    with pytest.raises(dp.DraftproofError, match=message):
        dp.load(name)


def test_a_folder_without_a_model_says_what_is_missing(tmp_path):
    with pytest.raises(dp.DraftproofError, match=r"contains no model: it needs a config.json"):
        dp.load(str(tmp_path))


@pytest.mark.parametrize("damage", ["truncate", "garble", "remove"])
def test_a_damaged_model_file_is_one_line(folder, tmp_path, damage):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    if damage == "truncate":
        weights.write_bytes(weights.read_bytes()[:5000])
    elif damage == "garble":
        weights.write_bytes(b"\xff" * 5000)
    else:
        weights.unlink()
    with pytest.raises(dp.DraftproofError, match=r"unreadable or incomplete \(.*\): copy or fetch it again") as error:
        dp.load(str(tmp_path))
    assert "\n" not in str(error.value)


SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
OTHER_KINDS = {
    "classifier": (
        lambda: LlamaForSequenceClassification(LlamaConfig(**tiny.SHAPE, num_labels=1)),
        r"gives scores or labels, not text \(LlamaForSequenceClassification\): choose a language model",
    ),
    "reward model with tied embeddings": (  # no weight is missing: its lm_head would be the embeddings
        lambda: Qwen2ForSequenceClassification(Qwen2Config(**tiny.SHAPE, num_labels=1, tie_word_embeddings=True)),
        r"gives scores or labels, not text \(Qwen2ForSequenceClassification\)",
    ),
    "embedding model": (
        lambda: LlamaModel(LlamaConfig(**tiny.SHAPE)),
        r"has no weights for lm_head.weight: choose a language model",
    ),
    "encoder-decoder": (
        lambda: T5ForConditionalGeneration(T5Config(vocab_size=50, d_model=32, num_layers=1, num_heads=4)),
        r"is an encoder-decoder model \(t5\): choose a decoder-only one",
    ),
    "masked model": (
        lambda: ModernBertForMaskedLM(ModernBertConfig(**SMALL, vocab_size=50, pad_token_id=0)),
        r"fills in masked words and cannot continue a text \(modernbert\): choose a decoder",
    ),
    "vision-language model": (
        lambda: LlavaForConditionalGeneration(
            LlavaConfig(
                text_config=LlamaConfig(**tiny.SHAPE),
                vision_config=CLIPVisionConfig(**SMALL, image_size=28, patch_size=14),
                image_token_index=5,
            )
        ),
        r"is a vision-language model \(llava\): choose one for text alone",
    ),
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_what_is_no_decoder_is_refused_by_what_it_is(kind, tmp_path):
    network, message = OTHER_KINDS[kind]
    network().save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(dp.DraftproofError, match=message) as error:
        dp.load(tmp_path)
    assert "\n" not in str(error.value)


def test_a_network_that_cannot_be_quantised_is_one_line(tmp_path):
    MambaForCausalLM(MambaConfig(vocab_size=258, hidden_size=32, num_hidden_layers=1)).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(dp.DraftproofError, match=r"cannot be quantised \(.*\): use --dtype float32"):
        dp.load(tmp_path, dtype="int8")


@pytest.mark.parametrize("text", ["", "GGUF", "GGUF" + "x" * 100])
def test_a_damaged_gguf_file_is_one_line(tmp_path, text):
    (tmp_path / "model.gguf").write_text(text)
    with pytest.raises(dp.DraftproofError, match=r"unreadable or incomplete"):
        dp.load(str(tmp_path / "model.gguf"))


def test_without_a_home_a_folder_is_asked_for(tmp_path, monkeypatch):
    for name in ("HOME", "DRAFTPROOF_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 987_654_321)  # nobody: there is no home to look up
    with pytest.raises(dp.DraftproofError, match="no home folder: set DRAFTPROOF_CACHE"):
        dp.load("smollm2")
    assert (build.compiled.__wrapped__() is None) == (build.compiled() is None)  # it needs no folder of its own
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path


# The model that is always there, with a random one in its place


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose tiny model is the tests' own."""
    place = tmp_path / "tiny"
    tiny.network("llama").save_pretrained(place)
    bundled.save_tokenizer(tiny.tokenizer(), place)
    monkeypatch.setattr(bundled, "WEIGHTS", tmp_path)
    return place


def test_the_tiny_model_comes_with_the_package(package):
    model = dp.load("tiny")
    assert model.tokenizer.get_vocab() == tiny.tokenizer().get_vocab()
    assert model.tokenizer.eos_token == "<end>"
    want = dp.generate(tiny.model(), "hello there", max_new_tokens=8, seed=1)
    assert dp.generate("tiny", "hello there", max_new_tokens=8, seed=1).text == want.text
    assert dp.generate(tiny.model("llama", 1), "hello", draft="tiny", max_new_tokens=8, seed=1).trace.drafter == "tiny"


def test_packaged_weights_lose_half_a_scale_at_most(tmp_path):
    """Whatever precision the config names: it is that of the network the weights were made from."""
    network = tiny.network("llama")
    bundled.save_network(network, tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "dtype": "float16"}))
    again = bundled.network(tmp_path, torch.float32)
    for name, weight in network.named_parameters():
        step = weight.abs().amax(dim=-1, keepdim=True) / 127 if weight.ndim > 1 else 0 * weight
        assert ((again.get_parameter(name) - weight).abs() <= 0.5001 * step).all(), name


def test_a_damaged_package_is_one_line(package):
    (package / "model.safetensors").unlink()
    with pytest.raises(
        dp.DraftproofError, match=r"'tiny' of this installation is damaged .*: install draftproof again"
    ):
        dp.load("tiny")


def test_the_packaged_tokenizer_is_that_of_the_default_model():
    """Compressed or not: the same numbers for the same words, and the default model's way of asking."""
    tokenizer = bundled.tokenizer(bundled.folder("tiny"))
    assert len(tokenizer) == 49152
    assert tokenizer("Why is the sky blue?")["input_ids"] == [4898, 314, 260, 6376, 4461, 47]
    asked = tokenizer.apply_chat_template([{"role": "user", "content": "Why?"}], tokenize=False)
    assert asked.endswith("<|im_start|>user\nWhy?<|im_end|>\n")


def test_the_tiny_model_writes_from_the_package_alone(monkeypatch):
    """No network, no cache: weights, tokenizer and chat template come with the package."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = dp.load("tiny")
    out = dp.generate(model, "Why is the sky blue?", sampling=dp.Sampling(temperature=0.5), max_new_tokens=12, seed=1)
    assert (model.name, model.vocabulary) == ("tiny", 49152)
    assert len(out.text.split()) > 3
    assert models.drafter("auto", model).name == "ngram"  # the head is for another model


def test_a_hub_id_is_announced_and_if_it_cannot_be_had_that_is_one_line(monkeypatch, capsys):
    def offline(*args, **kwargs):
        raise OSError("We couldn't connect to the Hub\nmany more lines")

    monkeypatch.setattr(AutoConfig, "from_pretrained", offline)
    with pytest.raises(
        dp.DraftproofError,
        match=r"'org/model' is no folder here and could not be loaded from the Hub \(We couldn't connect",
    ):
        dp.load("org/model")
    assert capsys.readouterr().err == "fetching org/model from the Hub\n"


def test_drafters_by_name(folder):
    target = dp.load(str(folder))
    assert models.drafter("ngram", target).vocabulary == target.vocabulary
    assert models.drafter(str(folder), target).name == str(folder)


def test_on_a_gpu_auto_means_a_head_or_no_drafter():
    """Guesses from the text itself pay on a CPU alone; asked for by name they are there."""
    target = SimpleNamespace(name="other", vocabulary=9, facts=ModelFacts(device="cuda"))
    assert models.drafter("auto", target) is None
    assert models.drafter("ngram", target).name == "ngram"
    assert models.drafter("auto|ngram", target).name == "ngram"
    assert models.drafter("auto|ngram|cache", target).name == "ngram|cache"


def test_that_auto_found_no_drafter_is_said(monkeypatch):
    monkeypatch.setattr("draftproof.models.registry.facts", lambda model: ModelFacts(device="cuda"))
    out = dp.generate(tiny.model(), "hello", draft="auto", max_new_tokens=8, seed=1)
    assert out.tokens == dp.generate(tiny.model(), "hello", draft=None, max_new_tokens=8, seed=1).tokens
    assert out.trace.drafter == "none"
    assert "no drafter: plain sampling, a target call for every token" in out.trace.summary()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "nowhere"}, "unknown device 'nowhere': use auto, cpu, cuda, cuda:1 or mps"),
        ({"device": "cuda:99"}, "device 'cuda:99' is not available here"),
        ({"device": "meta"}, "device 'meta' is not available here: use auto or cpu"),  # holds no numbers
        ({"device": "cpu:7"}, "device 'cpu:7' is not available here: the last one is cpu:0"),
        ({"device": "cuda", "dtype": "int8"}, "int8 weights run on the CPU, not on 'cuda'"),
        ({"dtype": "bfloat61"}, "unknown dtype 'bfloat61': use float32, bfloat16, float16 or int8"),
    ],
)
def test_a_wrong_device_or_precision_fails_before_anything_is_loaded(settings, message):
    with pytest.raises(dp.DraftproofError, match=message):
        dp.load("no-such-model", **settings)


@pytest.mark.parametrize("device", [None, "auto", "cpu", "cpu:0"])
def test_a_device_is_asked_for_by_name(device):
    assert dp.load("tiny", device=device).network.device.type == (
        "cuda" if device in (None, "auto") and torch.cuda.is_available() else "cpu"
    )


@pytest.mark.parametrize(
    ("place", "asked"),
    [("cuda", {"device": "cuda", "dtype": "bfloat16"}), ("cpu", {"device": "cpu", "dtype": "float32"})],
)
def test_a_drafter_by_name_is_put_beside_the_target(place, asked, monkeypatch):
    target = tiny.model()
    there = {"device": torch.device(place), "dtype": torch.bfloat16}
    target.network = SimpleNamespace(config=target.network.config, **there)
    loaded = []
    monkeypatch.setattr(
        "draftproof.models.registry.load", lambda name, **how: loaded.append((name, how)) or tiny.model()
    )
    models.drafter("org/small", target)
    assert loaded == [("org/small", asked)]
