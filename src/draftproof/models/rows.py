"""The linear layer in 8-bit integers as one function in C, for processors with VNNI and machines with a compiler.

In the middle of a call every torch operation costs ten microseconds or more, whatever it does, and an integer layer
takes eight of them. Here it is one call that reads the weights once. It is compiled on first use, within seconds; where
that is not possible torch does the same.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F  # noqa: N812

from draftproof.models.fetch import cache_folder

# sums may be vectorised; -ffast-math would also change how everyone else in the process rounds
FLAGS = "-O3 -march=native -fPIC -fopenmp -fno-math-errno -fno-trapping-math -fno-signed-zeros -fassociative-math"
GROUP = 32  # columns of weights that lie together


class Layer(NamedTuple):
    """Weights as the C function reads them."""

    weights: torch.Tensor  # [N / 32, K / 4, 32, 4] int8
    scale: torch.Tensor  # [N], as are the others; N filled up to a multiple of 32
    sums: torch.Tensor
    bias: torch.Tensor | None
    width: int
    outputs: int


def lay_out(weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> Layer | None:
    """Integer weights [N, K] with a scale [N] each; None where the C function is not to be had."""
    outputs, width = weight.shape
    if width % 8 or compiled() is None:
        return None
    missing = -outputs % GROUP
    whole = F.pad(weight, (0, 0, 0, missing)).view(-1, GROUP, width // 4, 4).transpose(1, 2).contiguous()
    sums = weight.sum(dim=1).float() * scale
    filled = [None if one is None else F.pad(one, (0, missing)) for one in (scale, sums, bias)]
    return Layer(whole, filled[0], filled[1], filled[2], width, outputs)  # type: ignore[arg-type]


def linear(x: torch.Tensor, layer: Layer, gain: torch.Tensor | None, floor: float | None) -> torch.Tensor:
    """x [..., K] times gain [K], each row rounded to bytes, times the weights: [..., N].

    With a floor each row is divided by the root of floor^2 and the sum of its squares: with a suitable gain, RMSNorm.
    """
    x = x.contiguous()
    count = x.numel() // layer.width
    out = torch.empty((*x.shape[:-1], layer.outputs))
    room = torch.empty(count * (layer.width + 8), dtype=torch.uint8)  # bytes [M, K], then two floats a row
    compiled().linear(
        x.data_ptr(),
        None if gain is None else gain.data_ptr(),
        -1.0 if floor is None else floor,
        count,
        layer.width,
        layer.weights.data_ptr(),
        layer.scale.data_ptr(),
        layer.sums.data_ptr(),
        None if layer.bias is None else layer.bias.data_ptr(),
        layer.outputs,
        room.data_ptr(),
        room.data_ptr() + count * layer.width,
        out.data_ptr(),
    )
    return out


@cache
def compiled() -> Any:
    """The C functions, kept in the cache folder; None without a compiler, a processor or a torch that they need."""
    source = Path(__file__).with_name("rows.c")
    compiler, about = shutil.which("cc"), Path("/proc/cpuinfo")
    if compiler is None or not about.is_file():
        return None
    flags = next((line for line in about.read_text().splitlines() if line.startswith("flags")), "")
    name = hashlib.sha256(source.read_bytes() + f"{compiler} {FLAGS} {flags}".encode()).hexdigest()
    made = cache_folder() / f"rows-{name[:16]}.so"
    try:
        if not made.exists():
            _compile(compiler, source, made)
        library = ctypes.PyDLL(str(made))  # calls are short: not worth giving the interpreter to others
    except (OSError, subprocess.SubprocessError):
        return None
    pointer, count = ctypes.c_void_p, ctypes.c_long
    inputs: list[Any] = [pointer, pointer, ctypes.c_float, count, count]
    library.linear.argtypes = [*inputs, pointer, pointer, pointer, pointer, count, pointer, pointer, pointer]
    library.linear.restype = None
    return library if library.available() else None


def _compile(compiler: str, source: Path, made: Path) -> None:
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
        part, whole = Path(scratch) / "rows.o", Path(scratch) / made.name
        # linked without OpenMP of its own: it finds torch's, so both use the same threads
        for command in ([*FLAGS.split(), "-c", str(source), "-o", str(part)], ["-shared", str(part), "-o", str(whole)]):
            subprocess.run([compiler, *command], check=True, capture_output=True, timeout=60)
        whole.replace(made)  # at once, so that nobody loads half a file
