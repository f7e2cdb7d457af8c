"""Ctrl-C and closed pipes, with real processes and signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draftproof.commands import batch, showing
from draftproof.engine.scheduler import Scheduler
from tests.support import tiny

SOURCE = str(Path(__file__).parents[2] / "src")
LONG = ("generate", "Tell a story", "--target", "tiny", "-n", "2000", "--ignore-eos", "--seed", "1")


def start(*words: str, code: str = "from draftproof.commands.cli import main; main()") -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )


def interrupt(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_what_was_written_stays_and_is_summed_up():
    process = start(*LONG)
    first = process.stdout.read(10)
    code, rest, err = interrupt(process)
    assert code == 130
    assert len(first + rest) > 10
    assert rest.endswith("\n")
    assert " tokens in " in err
    assert "finished: cancelled; seed 1\n" in err
    assert "Traceback" not in err


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C in the fourth step."""
    step, steps = Scheduler.step, []

    def counted(scheduler):
        steps.append(scheduler)
        if len(steps) == 4:
            raise KeyboardInterrupt
        return step(scheduler)

    monkeypatch.setattr(Scheduler, "step", counted)
    return steps


@pytest.mark.parametrize("samples", ["1", "2"])
def test_json_is_printed_of_what_was_written(samples, draftproof, interrupted):
    code, out, err = draftproof(*LONG, "--json", "--n", samples)
    assert (code, err) == (130, "")
    report = json.loads(out)
    for text in report.get("samples", [report]):
        assert text["finish"] == "cancelled"
        assert text["text"]
        assert len(text["tokens"]) == text["trace"]["tokens"] == 3


def test_samples_are_kept(draftproof, interrupted):
    code, out, err = draftproof(*LONG, "--n", "2", "--draft", "none")
    assert code == 130
    assert len(out.split("\n\n")) == 2
    assert all(text.strip() for text in out.split("\n\n"))
    assert "finished: cancelled x 2; seed 1\n" in err


@pytest.mark.parametrize("samples", ["1", "2"])
def test_a_piece_that_is_being_written_is_written_once(samples, draftproof, monkeypatch):
    """Ctrl-C right after the first word went out: it is not written again, and the summary counts it."""
    write, written = showing._print, []

    def pressed(console, pieces):
        write(console, pieces)
        if not written:
            written.append("".join(piece.text for piece in pieces))
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(showing, "_print", pressed)
    code, out, err = draftproof(*LONG, "--draft", "none", "--n", samples)
    assert code == 130
    assert out.startswith(f"{written[0]}\n")
    assert "finished: cancelled" in err


@pytest.mark.parametrize("more", [(), ("--json",), ("--n", "2")])
def test_before_the_first_token_it_is_quiet(more, draftproof, interrupted):
    interrupted += [None] * 3
    assert draftproof(*LONG, *more) == (130, "", "")


# Ctrl-C at the moment when a module is first looked for, before and while the command's own modules are imported
ON_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "MODULE":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from draftproof.commands.cli import main
main()
"""


@pytest.mark.parametrize("module", ["typer", "draftproof.commands.generate", "torch", "draftproof.models.hf"])
def test_before_anything_is_written_it_is_quiet(module):
    process = start(*LONG, code=ON_IMPORT.replace("MODULE", module))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


def test_nothing_slow_is_imported_before_main_can_catch_an_interrupt():
    code = "import sys; before = set(sys.modules); import draftproof.commands.cli; print(*set(sys.modules) - before)"
    out, err = start(code=code).communicate(timeout=60)
    assert err == ""
    assert set(out.split()) <= {"__future__", "draftproof", "draftproof.commands", "draftproof.commands.cli"}


def test_a_closed_pipe_is_quiet():
    process = start(*LONG)
    process.stdout.read(5)
    process.stdout.close()
    with process.stderr:
        err = process.stderr.read()
    assert (process.wait(timeout=60), err) == (1, "")


def test_a_batch_that_is_stopped_at_the_end_of_a_text_counts_what_the_file_has(tmp_path, monkeypatch, draftproof):
    (tmp_path / "prompts.txt").write_text("One\nTwo\nThree\n")
    out, write = tmp_path / "texts.jsonl", batch.Batch._line

    def stopped(self, line):  # Ctrl-C before the second line is written
        if out.stat().st_size:
            raise KeyboardInterrupt
        write(self, line)

    monkeypatch.setattr(batch.Batch, "_line", stopped)
    words = ["generate", "--target", "tiny", "--draft", "none", "-n", "3", "--rows", "1"]
    code, _, err = draftproof(*words, "--prompts", str(tmp_path / "prompts.txt"), "--out", str(out))
    assert code == 130
    assert f"stopped: 1 of 3 texts are in {out}; the same command goes on\n" in err


def test_a_stopped_batch_goes_on(tmp_path):
    (tmp_path / "prompts.txt").write_text("".join(f"Story {i}\n" for i in range(60)))
    out, model = tmp_path / "texts.jsonl", str(tiny.save(tmp_path / "model"))
    words = ["generate", "--target", model, "--draft", "none", "-n", "30", "--ignore-eos", "--seed", "3"]
    words += ["--prompts", str(tmp_path / "prompts.txt"), "--out", str(out), "--rows", "2"]
    process = start(*words)
    while not (out.exists() and out.read_text().count("\n") > 1) and process.poll() is None:
        time.sleep(0.02)
    code, _, err = interrupt(process)
    lines = out.read_text().splitlines()
    assert code == 130
    assert 1 < len(lines) < 60
    assert f"stopped: {len(lines)} of 60 texts are in {out}; the same command goes on\n" in err
    again = start(*words)
    assert again.communicate(timeout=120)[0] == ""
    assert again.returncode == 0
    texts = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(text["index"] for text in texts) == list(range(60))
    assert out.read_text().splitlines()[: len(lines)] == lines
