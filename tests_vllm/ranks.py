"""Seeded texts of an engine with so many tensor-parallel ranks, each in a process of its own, on standard output."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests_vllm import tiny


def main(folder: Path, ranks: int, drafts: str) -> None:
    spec = tiny.ngram() if drafts == "ngram" else tiny.drafter(folder / "drafter")
    backend = {"tensor_parallel_size": ranks, "distributed_executor_backend": "mp"}
    llm = tiny.engine(folder / "target", spec, "block", **backend)
    print("TEXTS", json.dumps(tiny.write(llm, 8, temperature=0.9, seed=4)))


if __name__ == "__main__":
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
