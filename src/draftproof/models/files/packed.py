"""Store weights in the fewest bytes that give back every float32 value, bit for bit.

The weights of a quantised GGUF file stay the blocks that they are in that file: a few bits a weight. Other weights are
stored as 16-bit floats where that loses nothing, and as float32 elsewhere.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

FILE = "packed.safetensors"

Rows = dict[str, dict[int, np.ndarray]]  # quantised rows, by GGML's name of their format and the hash of their values


def save(weights: Mapping[str, torch.Tensor], gguf: Path, folder: Path) -> None:
    """Write float32 weights that were read from a GGUF file; the names of their block formats go into the header."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    rows = _quantised_rows(gguf)
    stored, kinds = {}, {}
    for name, weight in weights.items():
        kind, blocks = _as_blocks(weight.numpy(), rows)
        if blocks is None:
            stored[name] = _shortest(weight)
        else:
            stored[name], kinds[name] = torch.from_numpy(blocks), kind
    try:
        save_file(stored, folder / FILE, metadata=kinds)
    except SafetensorError as error:  # what a full disk raises
        raise OSError(str(error)) from error


def read(folder: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The weights that `save` wrote, in the precision asked for; one float32 tensor at a time is held besides."""
    from safetensors import safe_open

    with safe_open(folder / FILE, framework="pt") as file:
        return {name: weight(file, name).to(dtype) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)


def write_out(source: Path, folder: Path) -> None:
    """Copy a model that `save` stored to an empty folder, with its weights as other libraries read them."""
    import torch
    from safetensors.torch import save_file

    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(FILE), dirs_exist_ok=True)
    save_file(read(source, torch.float32), folder / "model.safetensors", metadata={"format": "pt"})


def formats(file: Any) -> dict[str, str]:
    """GGML's names of the block formats in an open safetensors file, by weight; none in other files."""
    return {name: kind for name, kind in (file.metadata() or {}).items() if name != "format"}


def weight(file: Any, name: str) -> torch.Tensor:
    """A weight of an open safetensors file, as floats."""
    import torch

    stored: torch.Tensor = file.get_tensor(name)
    kind = formats(file).get(name)
    if kind is None:
        return stored
    from gguf import GGMLQuantizationType, dequantize

    return torch.from_numpy(dequantize(stored.numpy(), GGMLQuantizationType[kind]))


def _shortest(weight: torch.Tensor) -> torch.Tensor:
    """The weight as 16-bit floats where they have the same values."""
    import torch

    for dtype in (torch.bfloat16, torch.float16):
        short = weight.to(dtype)
        if _same(short.float().numpy(), weight.numpy()):
            return short.contiguous()
    return weight.contiguous()


def _quantised_rows(gguf: Path) -> Rows:
    """The rows of all quantised tensors of a file."""
    from gguf import GGMLQuantizationType, GGUFReader, dequantize

    plain = {GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16}
    found: Rows = {}
    for tensor in GGUFReader(gguf).tensors:
        if tensor.tensor_type not in plain:
            keys = _keys(dequantize(tensor.data, tensor.tensor_type))
            data = tensor.data.reshape(len(keys), -1)
            found.setdefault(tensor.tensor_type.name, {}).update(zip(keys, data, strict=True))
    return found


def _as_blocks(values: np.ndarray, rows: Rows) -> tuple[str, np.ndarray | None]:
    """The weight as blocks [..., bytes of a row] if all its rows are rows of the file, in any order; else None.

    transformers orders the rows of some matrices differently from the file, so rows are found by their values.
    """
    from gguf import GGMLQuantizationType, dequantize

    keys = _keys(values)
    for kind, known in rows.items():
        if values.ndim > 1 and all(key in known for key in keys):
            data = np.stack([known[key] for key in keys]).reshape(*values.shape[:-1], -1)
            if _same(dequantize(data, GGMLQuantizationType[kind]), values):
                return kind, data
    return "", None


def _keys(values: np.ndarray) -> list[int]:
    return [hash(row.tobytes()) for row in values.reshape(-1, values.shape[-1])]


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two float32 arrays have the same bits, those of zeros and NaN too."""
    return np.array_equal(np.ascontiguousarray(one).view(np.int32), np.ascontiguousarray(other).view(np.int32))


def state(network: Any) -> dict[str, torch.Tensor]:
    """The weights of a network, a tied one once."""
    unique = {weight.data_ptr(): (name, weight) for name, weight in reversed(network.state_dict().items())}
    return dict(reversed(unique.values()))
