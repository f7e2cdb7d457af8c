"""Weights in the fewest bytes come back bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open

from draftproof.models.files import packed
from tests.support import gguf_files

ROWS, WIDTH = 6, 512
RANDOM = np.random.default_rng(1)


def values(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows as they are in a GGUF file, and as float32."""
    wanted = gguf.GGMLQuantizationType[kind]
    if kind in ("F32", "F16", "BF16"):
        raw = gguf.quantize(RANDOM.normal(size=(ROWS, WIDTH)).astype(np.float32), wanted)
    else:
        block, size = gguf.GGML_QUANT_SIZES[wanted]
        raw = RANDOM.integers(0, 64, (ROWS, WIDTH // block * size), dtype=np.uint8)  # so that all scales are finite
    return raw, gguf.dequantize(raw, wanted)


def bits(weights: dict[str, torch.Tensor]) -> dict[str, list]:
    return {name: weight.float().view(torch.int32).tolist() for name, weight in weights.items()}


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS", "F16", "BF16", "F32"])
def test_weights_of_every_kind_come_back_and_take_what_they_take_in_the_file(kind, tmp_path):
    raw, floats = values(kind)
    file = gguf_files.tensors(tmp_path / "model.gguf", kind, {"one": raw})
    turned = np.ascontiguousarray(floats[[3, 1, 5, 0, 4, 2]])  # transformers orders the rows of some matrices otherwise
    weights = {"same": floats, "turned": turned, "experts": floats.reshape(2, ROWS // 2, WIDTH), "norm": floats[0]}
    kept = {name: torch.from_numpy(weight.copy()) for name, weight in weights.items()}
    packed.save(kept, file, tmp_path)
    assert bits(packed.read(tmp_path, torch.float32)) == bits(kept)
    assert bits(packed.read(tmp_path, torch.bfloat16)) == bits({n: w.bfloat16() for n, w in kept.items()})
    with safe_open(tmp_path / packed.FILE, framework="pt") as stored:
        assert {stored.get_tensor(name).nbytes for name in weights if name != "norm"} == {raw.nbytes}


def test_weights_that_are_not_in_the_file_are_kept_as_they_are(tmp_path):
    """Also where half of their rows are there."""
    raw, floats = values("Q8_0")
    file = gguf_files.tensors(tmp_path / "model.gguf", "Q8_0", {"one": raw})
    changed = torch.from_numpy(floats.copy())
    changed[3:] += 1e-3
    zeros = torch.tensor([[0.0, -0.0, 1.0, torch.nan]])
    packed.save({"changed": changed, "zeros": zeros}, file, tmp_path)
    assert bits(packed.read(tmp_path, torch.float32)) == bits({"changed": changed, "zeros": zeros})
