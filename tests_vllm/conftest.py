"""vLLM in this process, small and quiet. These variables are read when it is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    OMP_NUM_THREADS="1",
    NUMBA_NUM_THREADS="1",  # or vLLM's n-gram drafter gives torch two threads, which wait for each other at length
    VLLM_LOGGING_LEVEL="WARNING",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a tiny target, and a drafter that is the target with noise in its weights."""
    from tests_vllm.tiny import save

    folder = tmp_path_factory.mktemp("models")
    save(folder / "target", noise=0.0)
    save(folder / "drafter", noise=0.15)
    return folder


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model in a folder that vLLM reads."""
    from draftproof.models.files import download, packed

    folder = tmp_path_factory.mktemp("smollm2")
    packed.write_out(download.smollm2(), folder)
    return folder
