"""Kernels are interpreted in this process."""

from __future__ import annotations

from tests_vllm.runner_v2 import interpreted

interpreted.prepare()
