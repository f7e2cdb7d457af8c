"""vLLM's kernels in a folder of their own: all of them import there, with nothing of vLLM around them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_copied_kernels_need_nothing_else_of_vllm(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "benchmarks.vllm_files", str(tmp_path)], check=True, cwd=ROOT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "src")])}
    run = subprocess.run(
        [sys.executable, "-c", IMPORTS], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    version, _, files = run.stdout.strip().partition("\n")
    assert version == vllm_version()
    assert files.count(str(tmp_path)) == files.count(".py") > 10
