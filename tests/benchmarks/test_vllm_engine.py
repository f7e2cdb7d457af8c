"""The benchmark of drafts inside vLLM, with a stand-in for vLLM that samples by itself; and the table of its rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

import draftproof
from benchmarks import vllm_engine as bench
from benchmarks.audit import small
from draftproof.integrations.vllm import counters
from draftproof.kernels import ChainRule

ROOT = Path(__file__).resolve().parents[2]
CASES = {case: number for number, case in enumerate(bench.CASES)}


class StandIn:
    """As much of `vllm.LLM` as the benchmark uses: texts by transformers, numbers as if each text were one step."""

    heat = 1.0  # what the temperature is multiplied by

    def __init__(self, model: str, **settings: Any) -> None:
        self.network, self.drafts, self.steps = small().network, settings["speculative_config"], 0
        self.plugin = counters.Counters(torch.device("cpu")) if settings["additional_config"] else None

    def generate(self, prompts: list[Any], asked: Any, use_tqdm: bool) -> list[Any]:
        torch.manual_seed(len(prompts))
        made = []
        for prompt in prompts:
            ids = torch.tensor([prompt["prompt_token_ids"]])
            text = self.network.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=asked.temperature * self.heat,
                top_k=0, max_new_tokens=asked.max_tokens, eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
            made.append(SimpleNamespace(outputs=[SimpleNamespace(token_ids=text[0, ids.shape[1] :].tolist())]))
            self._count()
        return made

    def _count(self) -> None:
        self.steps += self.drafts is not None
        if self.plugin is not None:
            rule = torch.tensor([ChainRule.BLOCK])
            self.plugin.add(rule, torch.zeros(1, 4), torch.tensor([3]), torch.zeros(1, 4), torch.tensor([0]))

    def get_metrics(self) -> list[Any]:
        each = {"drafts": 1, "draft_tokens": 4, "accepted_tokens": 3}
        numbers = {f"vllm:spec_decode_num_{name}": count * self.steps for name, count in each.items()}
        return [SimpleNamespace(name=name, value=value) for name, value in numbers.items()] + [
            SimpleNamespace(name="x")
        ]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The row of a case, by the stand-in."""
    vllm = ModuleType("vllm")
    vllm.LLM, vllm.SamplingParams = StandIn, SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setenv(counters.VARIABLE, str(tmp_path))
    tokenizer = SimpleNamespace(encode=lambda words, **_: [ord(letter) % 31 for letter in words[:8]])
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda path: tokenizer)
    monkeypatch.setattr(draftproof, "load", lambda path: small())
    return lambda case, tokens=800: bench.measured(bench.CASES[CASES[case]], tmp_path, tokens)


def test_a_row_counts_what_was_written_after_the_first_text(measured: Any) -> None:
    row = measured(bench.Case("n-gram", "block"))
    assert (row["tokens"], row["steps"], row["drafted"], row["accepted"], row["rule"]) == (800, 8, 32, 24, "block")
    assert row["exact"]
    assert row["cpu_ms_a_token"] > 0
    shown = bench.line({**row, "cpu_ms_a_token": 9.7})  # 800 tokens, of which 24 took no step of their own
    assert "| n-gram | plug-in, `block` | 3.00 | 75% | 9.7 | 10.0 | exact so far |" in shown
    assert {"seed", "machine", "versions", "commit", "date", "temperature"} <= set(row)


def test_another_temperature_raises_the_alarm(measured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandIn, "heat", 2.0)
    row = measured(bench.Case("n-gram", None))
    assert not row["exact"]
    assert row["rule"] is None
    assert "**not exact**" in bench.line(row)


def test_texts_of_another_model_get_no_verdict(measured: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*arguments: Any, **named: Any) -> None:
        raise draftproof.audit.InputError(f"unlikely under {'small'!r}")

    monkeypatch.setattr(draftproof.audit, "audit", refuse)
    row = measured(bench.Case("model", None), 100)
    assert (row["exact"], row["verdict"]) == (None, "no verdict: unlikely under the target")
    assert bench.line(row).endswith("| **no verdict** |  |")


def test_a_plug_in_that_does_nothing_gives_no_row(measured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandIn, "_count", lambda self: None)
    with pytest.raises(RuntimeError, match="verified by no rule"):
        measured(bench.Case("model", "block"), 100)


def test_a_case_that_fails_shows_its_output() -> None:
    assert bench.alone(["-c", "print('noise'); print('ROW {\"a\": 1}')"]) == {"a": 1}
    with pytest.raises(RuntimeError, match="out of memory"):
        bench.alone(["-c", "print('ROW {}'); raise SystemExit('out of memory')"])


def test_all_cases_are_recorded_with_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = json.loads((ROOT / "benchmarks/results/vllm-cpu.json").read_text())[0]
    asked: list[list[str]] = []
    monkeypatch.setattr(bench, "save", lambda folder: None)
    monkeypatch.setattr(bench, "alone", lambda words: asked.append(words) or row)
    monkeypatch.setattr(sys, "argv", ["vllm_engine", "--tokens", "70", "--results", str(tmp_path / "rows.json")])
    bench.main()
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [words[words.index("--case") + 1] for words in asked] == list("012345")
    assert {row["command"] for row in rows} == {"python -m benchmarks.vllm_engine --tokens 70"}


def test_the_recorded_rows_are_of_one_run_and_the_plug_in_s_are_exact() -> None:
    rows = json.loads((ROOT / "benchmarks/results/vllm-cpu.json").read_text())
    assert [(row["drafts"], row["verify"]) for row in rows] == list(bench.CASES)
    assert len(bench.origins(rows)) == 1
    assert all(row["exact"] for row in rows if row["verify"])
