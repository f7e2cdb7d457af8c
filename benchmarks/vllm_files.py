"""Copy the few files of vLLM that hold its verification kernels, for a machine without vLLM.

    .venv-vllm/bin/python -m benchmarks.vllm_files build/vllm

Put the folder on the path of Python: what is there imports nothing but torch, triton and numpy. The kernels and all
that launches them are vLLM's own files, unchanged; what they ask the rest of vLLM is answered by a few lines.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from draftproof.integrations.vllm.workers import vllm_version

KERNELS = (
    "model_executor/warmup/jit_warmup.py",
    "model_executor/warmup/jit_warmup_triton_helper.py",
    "utils/math_utils.py",
    "v1/sample/ops/topk_topp_triton.py",
    "v1/watermarking/prfs/base.py",
    "v1/watermarking/prfs/philox.py",
    "v1/worker/gpu/sample/gumbel.py",
    "v1/worker/gpu/sample/watermark.py",
    "v1/worker/gpu/spec_decode/rejection_sampler_utils.py",
)
ANSWERS = {
    "config/model.py": 'PROCESSED_LOGPROBS_MODES = ("processed_logits", "processed_logprobs")\n',
    "envs.py": "VLLM_TRITON_JIT_WARMUP_NUM_THREADS = 1\n",
    "platforms.py": """\
from types import SimpleNamespace

import torch

_cuda = torch.cuda.is_available()
current_platform = SimpleNamespace(
    device_type="cuda" if _cuda else "cpu", is_cuda=lambda: _cuda, is_cuda_alike=lambda: _cuda, is_rocm=lambda: False,
    is_xpu=lambda: False, is_cpu=lambda: not _cuda,
)
""",
    "triton_utils.py": """\
import triton
import triton.language as tl
from triton.language.extra import libdevice as tldevice

HAS_TRITON = True
""",
    "utils/gpu_sync_debug.py": "from contextlib import nullcontext as gpu_sync_allowed\n",
    "utils/platform_utils.py": """\
from functools import cache

import torch


@cache
def num_compute_units(device_id=0):
    return torch.cuda.get_device_properties(device_id).multi_processor_count if torch.cuda.is_available() else 4
""",
}


def copy(home: Path, folder: Path, version: str) -> None:
    """Copy them from vLLM's package into folder/vllm."""
    texts = {name: (home / name).read_text(encoding="utf-8") for name in KERNELS}
    for name, text in {**texts, **ANSWERS, "__init__.py": f"__version__ = {version!r}\n"}.items():
        place = folder / "vllm" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm_files", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        raise SystemExit("vllm is not installed here: `make .venv-vllm/installed`, and use that environment")
    copy(Path(found.origin).parent, folder, vllm_version())


if __name__ == "__main__":
    main()
