"""draftproof warm: whatever the first text of a target would make is made, and nothing the second time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from draftproof.commands import warm as command
from draftproof.engine import warming
from draftproof.engine.graph.step import DeviceStep
from draftproof.engine.tuning import LENGTHS
from draftproof.models.base import ModelFacts
from tests.support import tiny
from tests.support.gguf_files import write


def test_files_are_made_once(tmp_path, monkeypatch, draftproof):
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    model = write(tmp_path / "toy.gguf")
    words = ["warm", "--target", str(model), "--draft", "ngram", "--device", "cpu"]
    (code, first, _), (_, again, _) = (draftproof(*words) for _ in range(2))
    (copy,) = (tmp_path / "cache").glob("gguf/toy-*")
    loaded, wrote = (f"loaded {model}, draft ngram: float32 on cpu (- s)", "wrote 1 short text (- s)")
    assert code == 0
    assert without_times(first) == [loaded, f"made model: {copy}", wrote]
    assert without_times(again) == [loaded, wrote]


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler")
def test_c_functions_are_compiled(tmp_path):
    """In a process of its own: here they may have been opened before."""
    settings = {**os.environ, "DRAFTPROOF_CACHE": str(tmp_path)}
    words = [sys.executable, "-m", "draftproof", "warm", "--target", "tiny", "--device", "cpu"]
    ran = subprocess.run(words, env=settings, capture_output=True, text=True, check=True)
    (library,) = tmp_path.glob("native-*.so")
    assert f"made C functions: {library}" in ran.stdout.splitlines()


def without_times(said: str) -> list[str]:
    """Without those about C functions too, which this process may have opened before."""
    return [re.sub(r"\([\d.]+ s\)", "(- s)", line) for line in said.splitlines() if "C functions" not in line]


@pytest.fixture
def on_gpu(monkeypatch):
    """The texts for a GPU, whose steps run eagerly here; and the draft lengths that are run."""
    monkeypatch.setattr(warming, "facts", lambda model: ModelFacts(device="cuda"))
    monkeypatch.setattr("draftproof.engine.graph.fits", lambda *asked: True)
    run, lengths = DeviceStep.run, []
    monkeypatch.setattr(DeviceStep, "run", lambda self, tree: (lengths.append(tree.size - 1), run(self, tree))[1])
    return lengths


def test_on_a_gpu_every_length_is_made_for_every_kind_of_control(on_gpu, monkeypatch):
    monkeypatch.setattr("secrets.randbits", lambda bits: 1)  # by some seeds, a short text ends before its third step
    target, draft = tiny.model(), tiny.model("llama", 1)
    texts = warming.warm_texts(target)
    kinds = [f"{door}, {control}" for control in ("own sampling", *warming.CONTROLS) for door in ("generate", "serve")]
    assert list(texts) == [*kinds, "prompt of 1 tokens"]  # the context has no room for others
    for name, lengths in {"generate, top-k": {*LENGTHS}, "serve, penalties": {5}, "prompt of 1 tokens": {5, 3}}.items():
        on_gpu.clear()
        texts[name](target, [draft])
        assert set(on_gpu) >= lengths, name


def test_without_a_draft_there_is_one_length(on_gpu):
    warming.warm_texts(tiny.model())["generate, greedy"](tiny.model(), [])
    assert set(on_gpu) == {0}


def test_processes_write_texts_by_name():
    """What a process is started with, and what it is asked."""
    command._open("tiny", "none", "float32", "cpu")
    assert command._write("generate") is None
    with pytest.raises(KeyError):
        command._write("a text that nobody knows")
