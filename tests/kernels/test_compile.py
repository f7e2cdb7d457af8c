"""The interpreter takes what a compiler refuses: kernels compile for a GPU, though none is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.compiling import CONTROLS, NETWORKS


def test_kernels_compile_for_controls_and_networks_of_every_kind(tmp_path):
    place = {"PYTHONPATH": os.pathsep.join(sys.path), "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    made = subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "support" / "compiling.py")],
        env={**os.environ, **place},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.stdout.splitlines() == [*CONTROLS, *NETWORKS], made.stderr[-2000:]
