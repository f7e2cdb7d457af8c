"""The driver that audits engines: environments, a job from beginning to end, second checks, and the page of rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.engines import __main__ as driver
from benchmarks.engines import environments, jobs, judge, toy
from draftproof.audit import Transcript, audit
from draftproof.models import load
from draftproof.models.table import TableModel
from draftproof.sampling import Sampling
from scripts import engines as pages


def test_every_engine_has_a_collector_pinned_packages_and_a_control():
    for engine in jobs.ENGINES:
        assert (jobs.HERE / "collectors" / engine.collector).is_file()
        assert engine.control in engine.modes
        if engine.environment is not None:
            pin = environments.pins()[engine.environment]
            for package in (*pin["packages"], *pin.get("bare", ())):
                assert "==" in package or "@" in package  # else another day would audit another engine


def test_engines_for_a_gpu_need_one_or_texts_from_one(tmp_path, monkeypatch):
    engines = {engine.name: engine for engine, _ in jobs.find(["vLLM kernels"])}
    on_gpu = engines["vLLM kernels on a GPU"]
    model = jobs.model_of(on_gpu, tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert driver.can_judge(engines["vLLM kernels"], "block", model, tmp_path)
    assert not driver.can_judge(on_gpu, "block", model, tmp_path)
    texts = driver.transcripts(on_gpu, "block", model, tmp_path)
    texts.parent.mkdir()
    texts.write_text("")
    assert driver.can_judge(on_gpu, "block", model, tmp_path)
    assert not driver.can_judge(on_gpu, "token", model, tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert driver.can_judge(on_gpu, "token", model, tmp_path)


def test_an_environment_is_made_once_and_again_when_its_pins_change(tmp_path, monkeypatch):
    pin = {"tool": "pip", "packages": ["a==1"], "without": []}
    monkeypatch.setattr(environments, "pins", lambda: {"some": pin})
    count = tmp_path / "count"
    command = [sys.executable, "-c", f"open({str(count)!r}, 'a').write('x')"]
    monkeypatch.setattr(environments, "commands", lambda pin, folder: [command])
    for expected in ("x", "x"):
        environments.made("some", tmp_path)
        assert count.read_text() == expected
    pin["packages"] = ["a==2"]
    environments.made("some", tmp_path)
    assert count.read_text() == "xx"


def test_the_commands_of_an_environment(tmp_path):
    made = {name: environments.commands(pin, tmp_path) for name, pin in environments.pins().items()}
    assert made["llamacpp"][0][:2] == ["npm", "install"]
    assert [words[1:3] for words in made["vllm"]] == [["-m", "venv"], ["-m", "pip"], ["-m", "pip"]]
    assert "torchvision" in made["vllm"][-1]
    assert "--no-deps" in made["vllm-kernels"][-1]


def test_source_packages_are_built_with_the_pinned_versions(tmp_path):
    pin = {"tool": "pip", "packages": ["torch==1", "a==2"], "without": []}
    made = environments.built_with(pin, tmp_path / "some.txt")
    assert {Path(path).read_text() for path in made.values()} == {"torch==1\na==2\n"}
    assert environments.built_with({"tool": "npm", "packages": ["a@1"]}, tmp_path / "other.txt") == {}


def test_all_engines_read_the_same_toy(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    target, draft = toy.made(tmp_path)
    prompt = torch.tensor(toy.prompts(toy.network(), count=2, length=6))
    with torch.no_grad():
        folder, gguf, other = (
            load(path, lean=False).network(prompt).logits for path in (target.folder, target.gguf, draft.folder)
        )
    torch.testing.assert_close(folder, gguf, atol=1e-5, rtol=0)
    assert (folder - other).abs().max() > 0.5  # a draft that can be wrong


def test_a_row_from_beginning_to_end_and_not_twice(tmp_path, monkeypatch):
    results = tmp_path / "rows.json"
    words = ["--only", "draftproof, token.", "--tokens", "150", "--home", str(tmp_path), "--results", str(results)]
    monkeypatch.setattr(sys, "argv", ["benchmarks.engines", *words])
    driver.main()
    rows = json.loads(results.read_text())
    assert list(rows) == ["draftproof, plain, toy", "draftproof, token, toy"]
    row = rows["draftproof, token, toy"]
    assert (row["verdict"], row["tolerance"], row["mode"]) == ("exact so far", 1e-5, "token")
    assert row["tokens"] >= 150
    assert row["paired"]["evidence"] < 4.6
    assert row["command"] == "python -m benchmarks.engines --only 'draftproof, token.' --tokens 150"
    assert str(tmp_path) not in json.dumps(rows)  # a place on this machine
    monkeypatch.setattr(jobs, "collect", lambda *_: pytest.fail("collected again"))
    driver.main()


def test_a_collector_that_fails_says_why(tmp_path):
    model = jobs.table_model(tmp_path)._replace(files={"folder": {"model": "nowhere", "draft": "nowhere"}})
    engine = jobs.ENGINES[1]
    with pytest.raises(RuntimeError, match=r"draftproof, token: the collector failed:\n(.|\n)*nowhere"):
        jobs.collect(engine, jobs.job(engine, "token", model, 1, 1), tmp_path / "out.jsonl", tmp_path)


def written(path: Path, laws, texts: int, seed: int) -> Path:
    """Texts of two tokens: the first by its law, the second by its law given the first."""
    chance = np.random.default_rng(seed)
    with path.open("w") as file:
        for _ in range(texts):
            first = int(chance.choice(2, p=laws[0]))
            file.write(json.dumps({"output_token_ids": [first, int(chance.choice(2, p=laws[1 + first]))]}) + "\n")
    return path


def test_histograms_tell_laws_apart_and_also_dependence(tmp_path):
    even, tied = [(0.5, 0.5)] * 3, [(0.5, 0.5), (0.6, 0.4), (0.4, 0.6)]  # each token has the same law in both
    plain, same, other = (
        written(tmp_path / str(seed), laws, 3000, seed) for seed, laws in enumerate((even, even, tied))
    )
    assert judge.compared(plain, same).chance > 0.01
    found = judge.compared(plain, other)
    assert found.chance < judge.SURE
    assert found.position == 0  # whole texts


def test_an_alarm_alone_is_no_verdict():
    coin = TableModel(lambda context: [0.5, 0.5])
    wrong = audit([Transcript((0,), (1,) * 400, Sampling())], coin, tolerance=0.0)
    sure, unsure = (judge.Compared(1, 9.0, 1, chance, 0.1) for chance in (1e-9, 0.01))
    assert judge.row(wrong, None, sure)["verdict"] == "not exact"
    assert judge.row(wrong, None, unsure)["verdict"] == "alarm, not confirmed"
    assert judge.row(wrong, None, None)["verdict"] == "alarm, not confirmed"


def test_the_page_shows_every_row_and_what_is_wrong():
    root = Path(__file__).parents[2]
    page, table, rows = pages.page(root), pages.table(root), pages.rows(root)
    assert page.count("<article") == len(rows) == table.count("\n| ") - 1
    wrong = sum(row["verdict"] != "exact so far" for row in rows)
    assert page.count("✗") == page.count('"card wrong"') == table.count("**") // 2 == wrong
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
