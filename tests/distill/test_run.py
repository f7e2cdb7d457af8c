"""A run from a target to a drafter: it learns, it survives being killed, and it fits into the memory there is."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from draftproof.commands.cli import app
from draftproof.distill import data, evaluate, head, model
from draftproof.distill.data import Source, Text
from draftproof.distill.job import Job
from draftproof.distill.run import distil
from draftproof.distill.student import Student
from draftproof.distill.teacher import Library
from draftproof.distill.train import Trainer, TrainSettings
from draftproof.errors import DraftproofError
from draftproof.theory import acceptance
from tests.support import tiny

SMALL = Job(shards=1, steps=60, rows=48, held_rows=16, length=48, batch=16, vocabulary=160, unroll=2)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 lines of text."""
    path = tmp_path_factory.mktemp("data") / "lines.txt"
    path.write_text("".join(f"line {n} of many\n" for n in range(200)))
    return path


def silent(stage: str, share: float, remark: str) -> None:
    pass


@pytest.fixture(scope="module")
def run(lines: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    out = tmp_path_factory.mktemp("run")
    distil(tiny.model(), "tiny", out, SMALL._replace(data=(str(lines),)), silent)
    return out


def files(folder: Path) -> dict[str, bytes]:
    """What a run made; the checkpoint is for its own use."""
    made = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "checkpoint.pt")
    return {str(path.relative_to(folder)): path.read_bytes() for path in made}


def test_training_improves_the_overlap(run: Path) -> None:
    target = tiny.model()
    held = Text.load([run / "text" / "held.safetensors"])
    trained = head.resume(target, run, 2)
    torch.manual_seed(0)
    assert trained.tokens is not None
    new = head.student(target, trained.tokens, 1, 2)
    for temperature in (1.0, 0.7):
        before, after = (evaluate.measure(target, one, held, temperature) for one in (new, trained))
        assert min(np.subtract(after.overlap, before.overlap)) > 0.03
        assert all(np.array(after.overlap) <= after.reach)
        assert all(np.array(after.tokens) <= np.array(after.limit) + 1e-9)
        assert after.tree_of_20 > max(before.tree_of_20, after.tokens[-1])


def test_one_of_several_siblings_is_accepted_as_theory_says() -> None:
    p, q = (np.random.default_rng(seed).dirichlet(np.full(9, 0.4)) for seed in (1, 2))
    found = evaluate._one_of(*(torch.from_numpy(law)[None, None] for law in (p, q)))[:, 0, 0]
    wanted = [acceptance.recursive(p, q, siblings) for siblings in range(1, len(found) + 1)]
    np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_small_model_improves_too(run: Path, lines: Path, tmp_path: Path) -> None:
    target = tiny.model()
    job = SMALL._replace(kind="model", data=(str(lines),), width=16, layers=1)
    (_, found) = distil(target, "tiny", tmp_path, job, silent, text=run / "text")
    held = Text.load([run / "text" / "held.safetensors"])
    torch.manual_seed(0)
    before = evaluate.measure(target, model.student(target, 16, 1), held, 0.7)
    assert found.overlap[0] > before.overlap[0] + 0.03
    again = evaluate.measure(target, model.student(target, 16, 1, str(tmp_path)), held, 0.7)
    np.testing.assert_allclose(again.overlap, found.overlap, atol=2e-3)  # float16 on disk


def test_killed_and_resumed_is_the_same_run(run: Path, lines: Path, tmp_path: Path) -> None:
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
import tiny
from pathlib import Path
from draftproof.distill.job import Job
from draftproof.distill.run import distil
import torch
torch.set_num_threads(1)
job = Job(*{tuple(SMALL._replace(data=(str(lines),)))!r})
distil(tiny.model(), "tiny", Path({str(tmp_path / "killed")!r}), job, lambda *report: None)
"""
    victim = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 60
    while not (tmp_path / "killed" / "checkpoint.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert not (tmp_path / "killed" / "model.safetensors").exists()  # it was killed midway
    job = SMALL._replace(data=(str(lines),))
    distil(tiny.model(), "tiny", tmp_path / "killed", job, silent)
    assert files(tmp_path / "killed") == files(run)


def test_stopped_at_any_report_is_the_same_run(run: Path, lines: Path, tmp_path: Path) -> None:
    job = SMALL._replace(data=(str(lines),))
    for stop in ("writing shard-0000", "reading", "training", "evaluating"):

        def halt(stage: str, share: float, remark: str, stop: str = stop) -> None:
            if stage == stop and share > 0.3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            distil(tiny.model(), "tiny", tmp_path, job, halt)
    distil(tiny.model(), "tiny", tmp_path, job, silent)
    assert files(tmp_path) == files(run)


def test_command(run: Path, lines: Path, tmp_path: Path) -> None:
    """The command makes the files, the table and the plot; the finished run is repeated from its files."""
    settings = "--shards 1 --steps 2 --rows 48 --held-rows 16 --length 48 --batch 8 --vocabulary 160 --unroll 1"
    folder = str(tiny.save(tmp_path / "target"))
    words = ["distill", "--target", folder, "--data", str(lines), "--out", str(tmp_path / "out"), *settings.split()]
    first = CliRunner().invoke(app, [*words, "--from", str(run)])
    assert first.exit_code == 0, first.output
    assert "overlap by position" in first.output
    made = files(tmp_path / "out")
    assert {"config.json", "model.safetensors", "evaluation.json", "evaluation.svg"} <= set(made)
    again = CliRunner().invoke(app, [*words, "--from", str(run), "--json"])
    assert json.loads(again.stdout) == json.loads(made["evaluation.json"])
    assert files(tmp_path / "out") == made


def test_a_folder_belongs_to_one_run(run: Path, lines: Path) -> None:
    with pytest.raises(DraftproofError, match="another seed"):
        distil(tiny.model(), "tiny", run, SMALL._replace(data=(str(lines),), seed=1), silent)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": ("absent.txt",)}, "prompts cannot be read from absent.txt"),
        ({"begin": "absent"}, "no head can be read in absent"),
        ({"begin": "absent", "kind": "model"}, "unknown model 'absent'"),
        ({"data": ("one.txt", "self")}, "one.txt has only one prompt, which is held out"),
        ({"rate": 0.0}, "rate must be positive"),
        ({"width": 20, "kind": "model"}, "width must be a multiple of 8, not 20"),
    ],
)
def test_what_cannot_work_leaves_no_folder_behind(
    change: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text("What?\n")
    with pytest.raises(DraftproofError, match=message):
        distil(tiny.model(), "tiny", tmp_path / "out", SMALL._replace(**change), silent)
    assert not (tmp_path / "out").exists()


def test_out_of_memory_halves_the_batch(run: Path) -> None:
    target = tiny.model()
    text = Text.load([run / "text" / "shard-0000.safetensors"])

    def trained(most: int) -> Trainer:
        student = head.resume(target, run, 2)

        def greedy(teacher, count):  # type: ignore[no-untyped-def]
            if len(teacher.tokens) > most:
                raise torch.OutOfMemoryError
            return student.guesses(teacher, count)

        watched: Student = student._replace(guesses=greedy)
        library = Library(target, text, student.taps, student.tokens)
        trainer = Trainer(library, watched, TrainSettings(4, 16))
        for _ in range(4):
            trainer.advance()
        return trainer

    large, small = trained(16), trained(5)
    assert (large.pieces, small.pieces) == (1, 4)
    for one, other in zip(large.masters, small.masters, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-4)  # alike but for rounding, which Muon enlarges
    with pytest.raises(DraftproofError, match="one row"):
        trained(0)


def test_text_follows_its_script() -> None:
    """Given tokens are there as given; what is drawn ends with an end token, and the next segment follows."""
    target = tiny.model()
    target.tokenizer = copy.deepcopy(target.tokenizer)
    target.tokenizer.chat_template = (
        "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}<end>{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    asked, own = Source.of(target, ["What?"]), Source.of(target, [])
    wordy = asked._replace(around=asked.around._replace(first=(65,) * 400))  # a template that says more than any prompt
    (opening,) = wordy.turn(True, np.random.default_rng(0))
    assert data.scripts([wordy], 2, np.random.default_rng(0))[0, 0].tolist() == [*opening, -1]
    text = target.tokenizer.decode
    assert [text(part) for part in asked.turn(True, np.random.default_rng(0))] == ["[user]What?<end>[assistant]"]
    assert [text(part) for part in own.turn(True, np.random.default_rng(0))] == ["[user]", "[assistant]"]
    given = data.scripts([asked, own], 8, np.random.default_rng(0))
    made = data.write(target, given, torch.full((8,), 3.0), 90, seed=1)  # hot, so that ends come soon
    for row, drawn, script in zip(made.tokens.tolist(), made.drawn.tolist(), given.tolist(), strict=True):
        segments = [[token for token in segment if token >= 0] for segment in script]
        turn, place = 0, 0
        for token, free in zip(row, drawn, strict=True):
            assert free == (place >= len(segments[turn]))
            if not free:
                assert token == segments[turn][place]
                place += 1
            elif token in target.end_tokens:
                turn, place = turn + 1, 0
