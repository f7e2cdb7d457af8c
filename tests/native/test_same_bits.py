"""A quantised model is the same to the last bit on every processor, with and without C, in every shape of call."""

from __future__ import annotations

import copy
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

import draftproof as dp
from draftproof import Tree
from draftproof.models.base import sessions
from draftproof.models.drafters.head import HeadModel
from draftproof.models.hf import HFModel
from draftproof.models.llama.backends import native_stack
from draftproof.models.llama.block import LayerShape
from draftproof.models.llama.head import HeadConfig, HeadNetwork
from draftproof.models.llama.int8 import quantise
from draftproof.models.llama.rebuild import rebuild
from draftproof.native import build

TEXT = [(7919 * i + 13) % 90 + 5 for i in range(41)]
OTHERS = {"x86_64": ("x86-64", "x86-64-v3", "skylake-avx512"), "aarch64": ("armv8-a", "armv8.2-a+dotprod")}
NEEDS = {
    "x86-64-v3": {"avx2", "fma", "bmi2"},
    "skylake-avx512": {"avx512bw", "avx512vl"},
    "armv8.2-a+dotprod": {"asimddp"},
}
WAYS = [*OTHERS.get(platform.machine(), ()), "torch"]


@cache
def library(way: str) -> Any:
    """The C functions for a processor; None for torch."""
    if way == "torch":
        return None
    about = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").is_file() else []
    if NEEDS.get(way, set()) - set(about):
        pytest.skip(f"this processor is no {way}")
    made = build.built(way)
    if made is None:
        pytest.skip("no compiler")
    return made


@cache
def network(name: str) -> Any:
    """Sizes that are no multiples of anything, of lanes, of registers, of tiles; or of 64, which AMX's tiles need."""
    torch.manual_seed(6)
    if name == "even":
        even = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2}
        return LlamaForCausalLM(LlamaConfig(**even, num_attention_heads=4, num_key_value_heads=2)).eval()
    odd = {"vocab_size": 97, "hidden_size": 39, "intermediate_size": 51, "num_hidden_layers": 2, "head_dim": 20}
    if name == "odd":
        return LlamaForCausalLM(LlamaConfig(**odd, num_attention_heads=3, num_key_value_heads=1)).eval()
    window = {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 1}
    sizes = {**odd, "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    return Qwen2ForCausalLM(Qwen2Config(**sizes, **window)).eval()


def quantised(name: str, lib: Any, monkeypatch: pytest.MonkeyPatch) -> HFModel:
    monkeypatch.setattr(build, "compiled", lambda: lib)
    if name == "tiny":
        return dp.load("tiny", dtype="int8")
    return HFModel(quantise(rebuild(copy.deepcopy(network(name))), TEXT))


@torch.no_grad()
def read(model: HFModel) -> list[torch.Tensor]:
    """Logits and hidden states of a text read at once, and of a tree after it in one row and in another."""
    output = model.network(torch.tensor([TEXT]), output_hidden_states=True)
    session = model.session(2, 60)
    session.join(0, TEXT)
    session.join(1, TEXT[:7])
    tokens = np.array([[TEXT[-1], 5, 6, 7, 8, 9], [TEXT[6], 9, 8, 7, 6, 5]])
    return [output.logits, *output.hidden_states, session.extend(Tree((-1, 0, 0, 1, 1, 2)), tokens, range(6))]


@pytest.mark.parametrize("name", ["tiny", "odd", "even", "windows"])
@pytest.mark.parametrize("way", WAYS)
def test_all_ways_compute_the_same_bits(monkeypatch, way, name):
    if build.compiled() is None:
        pytest.skip("no compiler: there is torch alone")
    here = read(quantised(name, build.compiled(), monkeypatch))
    there = read(quantised(name, library(way), monkeypatch))
    assert all(torch.equal(one, other) for one, other in zip(here, there, strict=True))


@torch.no_grad()
def read_by_head(target: HFModel) -> list[torch.Tensor]:
    """Entries of a head and its scores of draft tokens, from what the target has read at once and in a step."""
    torch.manual_seed(7)
    made = HeadNetwork(HeadConfig(LayerShape(39, 3, 1, 20, 51), 2, (0, 1, 2), 10000.0, 40))
    made.tokens.copy_(torch.arange(0, 80, 2))
    made.tap_scale.mul_(1 + torch.rand_like(made.tap_scale))
    session, (drafter,) = sessions(target, [HeadModel(target, made)], 1, 60)
    tree, tokens, scores = Tree.chain(3), np.array([[TEXT[-1], 4, 6, 8]]), []
    for one in (session, drafter.session):
        one.join(0, TEXT)
    for last in (5, 9):
        scores.append(torch.as_tensor(drafter.session.extend(tree, tokens, range(4))))
        session.extend(tree, tokens, range(4))
        for one in (session, drafter.session):
            one.commit(tree, tokens, [2], [last])
        tokens[0, 0] = last
    return [*scores, *drafter.session.cache.buffers]


@pytest.mark.parametrize("way", WAYS)
def test_a_head_computes_the_same_bits_in_all_ways(monkeypatch, way):
    if build.compiled() is None:
        pytest.skip("no compiler: there is torch alone")
    here = read_by_head(quantised("odd", build.compiled(), monkeypatch))
    there = read_by_head(quantised("odd", library(way), monkeypatch))
    assert all(torch.equal(one, other) for one, other in zip(here, there, strict=True))


@pytest.mark.parametrize(("way", "most"), [("native", 512), ("native", 6), ("torch", 512)])
@pytest.mark.parametrize("name", ["odd", "even", "windows"])
def test_a_token_is_read_the_same_in_every_shape_of_call(monkeypatch, way, most, name):
    model = quantised(name, None if way == "torch" else build.compiled(), monkeypatch)
    after = [11, 23, 31]
    with torch.no_grad():
        at_once = model.network(torch.tensor([[*TEXT, *after]])).logits
        monkeypatch.setattr(native_stack, "_most", lambda blocks: most)  # all that follows is read in such parts
        parts = model.network(torch.tensor([[*TEXT, *after]])).logits
    assert torch.equal(parts, at_once)
    whole = at_once[0, len(TEXT) - 1 :]

    def opened(*texts: list[int]) -> Any:
        session = model.session(len(texts), 60)
        for row, text in enumerate(texts):
            session.join(row, text)
        return session

    chain, alone = Tree.chain(3), opened(TEXT)
    assert torch.equal(alone.extend(chain, np.array([[TEXT[-1], *after]]), range(4))[0], whole)
    steps = opened(TEXT[:1])
    for last, then in zip([*TEXT, *after], [*TEXT[1:], *after, 0], strict=True):
        logits = steps.extend(Tree.chain(0), np.array([[last]]), range(1))[0, 0]
        steps.commit(Tree.chain(0), np.array([[last]]), [0], [then])
    assert torch.equal(logits, whole[-1])
    tree = Tree((-1, 0, 0, 0, 1, 3, 3, 5))  # the path 0, 3, 5, 7 has siblings between its nodes
    tokens = np.array([[TEXT[-1], 1, 2, after[0], 4, after[1], 6, after[2]]])
    assert torch.equal(opened(TEXT).extend(tree, tokens, range(8))[0, [0, 3, 5, 7]], whole)
    batch = opened(TEXT[:3], TEXT, TEXT[:20])
    last = np.array([[TEXT[2], 1, 2, 3], [TEXT[-1], *after], [TEXT[19], 1, 2, 3]])
    assert torch.equal(batch.extend(chain, last, range(4))[1], whole)


def test_torch_compiled_for_another_processor_makes_the_same_model():
    """Weights, which are rounded after a calibration, and logits; torch's own functions differ in last bits there."""
    other = subprocess.run(
        [sys.executable, "-c", "from tests.native import test_same_bits as t; print(t.fingerprint())"],
        env={**os.environ, "ATEN_CPU_CAPABILITY": "default"},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == fingerprint()


def fingerprint() -> str:
    """Of the quantised network that comes with the package."""
    torch.set_num_threads(1)
    logits, *_ = read(dp.load("tiny", dtype="int8"))
    return hashlib.sha256(logits.numpy().tobytes()).hexdigest()


HARNESS = Path(__file__).with_name("same_bits.c")
ARM = ("aarch64-linux-gnu-gcc", "qemu-aarch64", ("armv8-a", "armv8.2-a+dotprod"))


def printed(folder: Path, compiler: str, march: str, *runner: str) -> str:
    """What the harness prints when compiled for a processor."""
    program = folder / f"{compiler}-{march}"
    subprocess.run(
        [compiler, *build.FLAGS.split(), f"-march={march}", "-static", HARNESS, "-o", program, "-lm"], check=True
    )
    return subprocess.run([*runner, program], check=True, capture_output=True, text=True).stdout


def test_an_arm_processor_computes_the_same_bits(tmp_path):
    """In an emulator, where there is one."""
    compiler, emulator, kinds = ARM
    if not (shutil.which("cc") and shutil.which(compiler) and shutil.which(emulator)):
        pytest.skip(f"needs {compiler} and {emulator}")
    here = printed(tmp_path, "cc", "native")
    assert here.count("\n") > 20
    for march in kinds:
        assert printed(tmp_path, compiler, march, emulator, "-cpu", "max") == here
