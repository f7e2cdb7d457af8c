"""Model runner V2 on the CPU: vLLM's and our kernels in Triton's interpreter, which vLLM does not foresee."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any


def prepare() -> None:
    """To be called before vLLM is imported."""
    os.environ.update(TRITON_INTERPRET="1", VLLM_USE_V2_MODEL_RUNNER="1")
    from triton import backends
    from triton.runtime import interpreter

    # vLLM asks whether Triton has a backend for the CPU
    driver = SimpleNamespace(is_active=lambda: True)
    backends.backends.setdefault("cpu", SimpleNamespace(compiler=None, driver=driver))

    builder = interpreter.InterpreterBuilder

    def boolean(handle: Any) -> Any:
        return None if handle is None else interpreter.TensorHandle(handle.data.astype(bool), handle.dtype)

    load, store = builder.create_masked_load, builder.create_masked_store
    builder.create_masked_load = lambda self, ptrs, mask, *rest, **named: load(
        self, ptrs, boolean(mask), *rest, **named
    )
    builder.create_masked_store = lambda self, ptrs, value, mask, *rest, **named: store(
        self, ptrs, value, boolean(mask), *rest, **named
    )
