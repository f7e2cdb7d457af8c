"""Parts of a layer as functions in C, for calls of few tokens on the CPU of a machine with a compiler.

In the middle of such a call every torch operation costs ten microseconds or more, whatever it does. Attention with all
that belongs to it takes ten of them, a linear layer in 8-bit integers eight; here each is one, and reads its weights as
fast as memory gives them. A row's numbers are summed in the same order whatever stands beside it, so its result is the
same to the last bit. The functions are compiled on first use, within seconds; where that is not possible torch does the
work.
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
FEW = 32  # tokens
LONGEST = 1 << 15  # slots that one token looks at
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
    if width % 8 or compiled() is None or not compiled().has_linear():
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


class Floats(NamedTuple):
    """Weights in float32 as the C function reads them."""

    weights: torch.Tensor  # [N / 32, K, 32]
    bias: torch.Tensor | None  # [N]
    width: int
    outputs: int

    @property
    def dense(self) -> torch.Tensor:
        """[N, K]."""
        return self.weights.transpose(1, 2).reshape(-1, self.width)[: self.outputs]


def lay_out_floats(weight: torch.Tensor, bias: torch.Tensor | None) -> Floats | None:
    """Weights [N, K]; None where the C function is not to be had."""
    outputs, width = weight.shape
    if width % 2 or compiled() is None or not compiled().has_floats():
        return None
    whole = F.pad(weight, (0, 0, 0, -outputs % GROUP)).view(-1, GROUP, width).transpose(1, 2).contiguous()
    return Floats(whole, bias, width, outputs)


def linear_floats(x: torch.Tensor, layer: Floats) -> torch.Tensor:
    """x [..., K] times the weights: [..., N]."""
    x = x.contiguous()
    out = torch.empty((*x.shape[:-1], layer.outputs))
    bias = None if layer.bias is None else layer.bias.data_ptr()
    count, weights = x.numel() // layer.width, layer.weights.data_ptr()
    compiled().linear_floats(x.data_ptr(), count, layer.width, weights, bias, layer.outputs, out.data_ptr())
    return out


def fits(x: torch.Tensor) -> bool:
    """Whether `norm`, `gate` and `attend` take this tensor [B, T, ...]; on many tokens torch is as fast."""
    plain = x.device.type == "cpu" and x.dtype == torch.float32 and not x.requires_grad
    return plain and x.shape[1] <= FEW and x.is_contiguous() and compiled() is not None


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm of x [B, T, width]."""
    out, width = torch.empty(x.shape), x.shape[-1]
    compiled().norm(x.data_ptr(), weight.data_ptr(), eps, x.numel() // width, width, out.data_ptr())
    return out


def gate(joint: torch.Tensor) -> torch.Tensor:
    """[B, T, 2 * width] -> silu(first half) * second half."""
    width = joint.shape[-1] // 2
    out = torch.empty((*joint.shape[:-1], width))
    compiled().gate(joint.data_ptr(), joint.numel() // (2 * width), width, out.data_ptr())
    return out


SIZES = (
    *("batch", "tokens", "heads", "shared", "size", "room", "first"),
    *("start", "begin", "used", "mask_row", "mask_token"),
)


class Sizes(ctypes.Structure):
    """Of `attend`, as native.c has them."""

    _fields_ = tuple((name, ctypes.c_long) for name in SIZES)


def attend(
    joint: torch.Tensor, rotation: Any, store: Any, heads: int, mask: torch.Tensor | None
) -> torch.Tensor | None:
    """Queries, keys and values side by side [B, T, ...] -> [B, T, heads * size]; None where torch has to do it.

    Queries and keys are turned, keys and values kept in the store (a layer of a SlotCache), and the mask [B, 1, T, S]
    added, as Block says it.
    """
    cache, (batch, tokens) = getattr(store, "cache", None), joint.shape[:2]
    if cache is None or not store.is_initialized or cache.used > LONGEST or len(rotation.cos) != batch:
        return None
    if cache.only is not None:  # its rows need not be neighbours
        return None
    row = token = 0
    if mask is not None:
        if mask.dtype != torch.float32 or mask.stride(3) != 1:
            return None
        row, token = mask.stride(0) if len(mask) > 1 else 0, mask.stride(2)
    keys, cos, sin = store.keys, rotation.cos.contiguous(), rotation.sin.contiguous()
    _, shared, room, size = keys.shape
    slots = None if cache.start is not None else cache.slots.contiguous()
    out = torch.empty((batch, tokens, heads * size))
    place = (room, cache.first, cache.start or 0, cache.begin, cache.used)
    compiled().attend(
        Sizes(batch, tokens, heads, shared, size, *place, row, token),
        joint.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        None if slots is None else slots.data_ptr(),
        keys.data_ptr(),
        store.values.data_ptr(),
        None if mask is None else mask.data_ptr(),
        out.data_ptr(),
    )
    return out


@cache
def compiled() -> Any:
    """The C functions, kept in the cache folder; None without a compiler, a processor or a torch that they need."""
    source = Path(__file__).with_name("native.c")
    compiler, about = shutil.which("cc"), Path("/proc/cpuinfo")
    if compiler is None or not about.is_file():
        return None
    flags = next((line for line in about.read_text().splitlines() if line.startswith("flags")), "")
    name = hashlib.sha256(source.read_bytes() + f"{compiler} {FLAGS} {flags}".encode()).hexdigest()
    made = cache_folder() / f"native-{name[:16]}.so"
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
    library.linear_floats.argtypes = [pointer, count, count, pointer, pointer, count, pointer]
    library.norm.argtypes = [pointer, pointer, ctypes.c_float, count, count, pointer]
    library.gate.argtypes = [pointer, count, count, pointer]
    library.attend.argtypes = [Sizes, *[pointer] * 8]
    library.linear_floats.restype = library.norm.restype = library.gate.restype = library.attend.restype = None
    return library


def _compile(compiler: str, source: Path, made: Path) -> None:
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
        part, whole = Path(scratch) / "native.o", Path(scratch) / made.name
        # linked without OpenMP of its own: it finds torch's, so both use the same threads
        for command in ([*FLAGS.split(), "-c", str(source), "-o", str(part)], ["-shared", str(part), "-o", str(whole)]):
            subprocess.run([compiler, *command], check=True, capture_output=True, timeout=60)
        whole.replace(made)  # at once, so that nobody loads half a file
