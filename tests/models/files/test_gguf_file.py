"""A GGUF file is converted once; its copy is the same model, and copies do not pile up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import draftproof as dp
from draftproof.models.files import gguf_file, packed
from draftproof.models.registry import read
from draftproof.native import build
from draftproof.paths import cache_folder
from tests.support import gguf_files, tiny


@pytest.fixture
def file(tmp_path, monkeypatch):
    build.compiled()  # into another cache
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    return gguf_files.write(tmp_path / "small.gguf")


def copies() -> list[Path]:
    return sorted(place for place in (cache_folder() / "gguf").iterdir() if place.is_dir())


def test_the_copy_is_the_same_model(file, capfd):
    """Weights bit for bit as transformers reads them from the file, in the bytes that they have there."""
    network, tokenizer = gguf_file.convert(file)
    texts = []
    capfd.readouterr()
    for _ in range(2):
        again, words = read(str(file), torch.float32)
        assert again.state_dict().keys() == network.state_dict().keys()
        for name, weight in network.state_dict().items():
            assert torch.equal(again.state_dict()[name].view(torch.int32), weight.view(torch.int32)), name
        assert words.get_vocab() == tokenizer.get_vocab()
        texts.append(dp.generate(dp.load(file), "hello", max_new_tokens=8, seed=1).tokens)
    assert texts[0] == texts[1]
    assert capfd.readouterr().err == "converting small.gguf\n"  # once, and no progress bar
    (copy,) = copies()
    assert (copy / packed.FILE).stat().st_size < file.stat().st_size
    assert type(dp.load(file).network).__name__ == "FusedLlama"  # as the model in a folder would be


def test_a_file_without_loss_is_the_model_that_it_was_written_from(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    model = dp.load(gguf_files.write(tmp_path / "small.gguf", "F32"))
    assert model.end_tokens == (256,)
    want = dp.generate(tiny.model(), "hello", max_new_tokens=8, seed=1).tokens
    assert dp.generate(model, "hello", max_new_tokens=8, seed=1).tokens == want


def test_a_changed_file_is_converted_again(file):
    before = dp.load(file)
    gguf_files.write(file, seed=1)
    os.utime(file, (1, 1))
    after = dp.load(file)
    assert not torch.equal(before.network.embed.weight, after.network.embed.weight)
    assert len(copies()) == 2


def test_copies_least_recently_used_go(file, tmp_path, monkeypatch):
    dp.load(file)
    other, third = (Path(shutil.copy(file, tmp_path / name)) for name in ("other.gguf", "third.gguf"))
    (mine,) = copies()
    (cache_folder() / "gguf" / "old.part").mkdir()  # of a process that was killed
    dp.load(other)
    assert len(copies()) == 2  # within the limit
    monkeypatch.setattr(gguf_file, "LIMIT", 0)
    dp.load(third)
    assert len(copies()) == 3  # another process may still be reading what was opened this hour
    for copy in copies():
        os.utime(copy, (1, 1))
    dp.load(file)  # used now
    shutil.rmtree(next(copy for copy in copies() if copy.name.startswith("third")))
    dp.load(third)
    assert [copy.name.partition("-")[0] for copy in copies()] == ["small", "third"]
    assert mine in copies()


def test_a_cache_that_cannot_be_written_is_done_without(file, tmp_path, monkeypatch, capfd):
    want = dp.generate(file, "hello", max_new_tokens=8, seed=1).tokens
    capfd.readouterr()
    (tmp_path / "cache.txt").write_text("")
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache.txt" / "cache"))
    assert dp.generate(file, "hello", max_new_tokens=8, seed=1).tokens == want
    said = capfd.readouterr().err.splitlines()
    assert said[0] == "converting small.gguf"
    assert said[1].startswith(f"note: the converted small.gguf cannot be kept in {cache_folder()} (Not a directory)")
    assert len(said) == 2


def test_a_disk_that_is_full_is_done_without(file, capfd):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # the weights have more bytes
    try:
        model = dp.load(file, dtype="bfloat16")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert model.network.dtype == torch.bfloat16
    assert "cannot be kept" in capfd.readouterr().err
    assert copies() == []


def test_a_damaged_copy_names_its_folder(file):
    dp.load(file)
    (copy,) = copies()
    (copy / packed.FILE).write_bytes((copy / packed.FILE).read_bytes()[:3000])
    with pytest.raises(dp.DraftproofError, match=rf"{copy} is damaged \(.*\): delete that folder and try again"):
        dp.load(file)


def test_nothing_but_our_own_lines_is_written_to_a_pipe(file):
    """The first run converts the file, the second one reads the copy; neither shows a bar of transformers."""
    twice = """
import sys
from draftproof.commands import cli
for _ in range(2):
    try:
        cli.main()
    except SystemExit as end:
        assert not end.code
"""
    words = ["generate", "hello", "--target", str(file), "-n", "3", "--seed", "1", "--json"]
    plain = {**os.environ, "PATH": ""}  # no compiler: it would take seconds in an empty cache
    done = subprocess.run([sys.executable, "-c", twice, *words], capture_output=True, text=True, env=plain)
    assert (done.returncode, done.stderr) == (0, "converting small.gguf\n")
    assert done.stdout.count('"tokens"') >= 2
