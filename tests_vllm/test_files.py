"""vLLM's kernels in a folder of their own: all of them import there, with nothing of vLLM around them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.engines import jobs, judge
from draftproof.integrations.vllm.workers import vllm_version

ROOT = Path(__file__).parents[1]
IMPORTS = """
import sys
import vllm
import draftproof.integrations.vllm.runner_v2
import vllm.v1.sample.ops.topk_topp_triton
import vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils
print(vllm.__version__)
files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items() if name.startswith("vllm")}
print(set(filter(None, files.values())))
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with vLLM's kernels."""
    folder = tmp_path_factory.mktemp("copied")
    subprocess.run([sys.executable, "-m", "benchmarks.vllm_files", str(folder)], check=True, cwd=ROOT)
    return folder


def test_copied_kernels_need_nothing_else_of_vllm(copied: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copied), str(ROOT / "src")])}
    run = subprocess.run(
        [sys.executable, "-c", IMPORTS], env=environment, cwd=copied, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    version, _, files = run.stdout.strip().partition("\n")
    assert version == vllm_version()
    assert files.count(str(copied)) == files.count(".py") > 10


def test_the_plug_in_verifies_by_the_laws_with_launches_that_are_made_again(copied: Path) -> None:
    path = os.pathsep.join([str(copied), str(ROOT / "src")])
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.vllm_device", "--check"], cwd=ROOT, capture_output=True,
        env={**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1"}, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.count('"wrong": 0') == 8


@pytest.mark.parametrize("mode", ["block", "block, draftproof"])
def test_texts_of_the_audit_on_a_gpu_are_collected(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """With the copied kernels, in the interpreter: vLLM's verification, and the plug-in's."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(copied), str(ROOT / "src")]))
    engine = next(each for each in jobs.ENGINES if each.gpu)
    model, out = jobs.table_model(tmp_path)._replace(longest=8), tmp_path / "texts.jsonl"
    jobs.collect(engine, jobs.job(engine, mode, model, 4, 1), out, tmp_path)
    report = judge.judged(out, model.target, "none", 1e-5)
    assert report.exact  # so few tokens show no fault
    assert report.tokens == 64
