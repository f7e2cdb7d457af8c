"""Every kernel compiles for a GPU: Triton's interpreter, which the other tests use, accepts more than the compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.compiling import CONTROLS, NETWORKS


def test_kernels_compile_for_controls_and_networks_of_every_kind(tmp_path):
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    compiled = subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "support" / "compiling.py")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert compiled.stdout.splitlines() == [*CONTROLS, *NETWORKS], compiled.stderr[-2000:]
