"""Rows of numbers as bytes and back, by small loops in C where the machine has a compiler, else by torch.

In the middle of a call of one token every torch operation costs ten microseconds or more, whatever it does; there are a
thousand of them. A loop in C does in one go what takes torch eight.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from draftproof.models.fetch import cache_folder

# sums may be vectorised; -ffast-math would also change how everyone else in the process rounds
FLAGS = ("-O3", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math")


def to_bytes(
    rows: torch.Tensor, gain: torch.Tensor | None, floor: float | None, least: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [M, K] times gain [K] as bytes [M, K], and of each row [M, 2] the unit of its bytes and the value of zero.

    With a floor both are divided by the root of its square and the sum of squares of the row: RMSNorm, where floor and
    gain say so. If there are fewer than `least` rows, more of any content follow.
    """
    count, width = rows.shape
    library = compiled()
    if library is None:
        made = torch.ops.quantized.embedding_bag_byte_prepack(rows if gain is None else rows * gain)  # [M, K + 8]
        affine = made[:, width:].clone().view(torch.float32)
        if floor is not None:
            affine /= torch.linalg.vector_norm(rows, dim=-1, keepdim=True).square_().add_(floor**2).sqrt_()
        return torch.nn.functional.pad(made, (0, -8, 0, max(least - count, 0))), affine
    rows = rows.contiguous()
    made = torch.empty((max(count, least), width), dtype=torch.uint8)
    affine = torch.empty((count, 2))
    scaled = None if gain is None else gain.data_ptr()
    unnormed = -1.0 if floor is None else floor
    library.to_bytes(rows.data_ptr(), scaled, unnormed, count, width, made.data_ptr(), affine.data_ptr())
    return made, affine


def from_bytes(products: torch.Tensor, affine: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """Products [M, N] of bytes and weights, in place made those of the numbers; sums [N] are those of the weights."""
    library = compiled()
    if library is None or not products.is_contiguous():
        return products.mul_(affine[:, :1]).addcmul_(affine[:, 1:], sums)
    library.from_bytes(products.data_ptr(), affine.data_ptr(), sums.data_ptr(), *products.shape)
    return products


@cache
def compiled() -> Any:
    """The loops, compiled on first use and kept in the cache folder; None without a compiler."""
    source = Path(__file__).with_name("rows.c")
    compiler = shutil.which("cc")
    if compiler is None or not source.is_file():
        return None
    name = hashlib.sha256(source.read_bytes() + " ".join((compiler, *FLAGS, os.uname().machine)).encode()).hexdigest()
    made = cache_folder() / f"rows-{name[:16]}.so"
    try:
        if not made.exists():
            made.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
                built = Path(scratch) / made.name
                command = [compiler, *FLAGS, str(source), "-o", str(built), "-lm"]
                subprocess.run(command, check=True, capture_output=True, timeout=60)
                built.replace(made)  # at once, so that nobody loads half a file
        library = ctypes.PyDLL(str(made))  # short loops: not worth giving the interpreter to others
    except (OSError, subprocess.SubprocessError):
        return None
    pointer, count = ctypes.c_void_p, ctypes.c_long
    library.to_bytes.argtypes = [pointer, pointer, ctypes.c_float, count, count, pointer, pointer]
    library.from_bytes.argtypes = [pointer, pointer, pointer, count, count]
    library.to_bytes.restype = library.from_bytes.restype = None
    return library
