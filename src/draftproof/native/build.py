"""Compile the C functions on first use, within seconds, and keep the library in the cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from draftproof.errors import DraftproofError
from draftproof.paths import cache_folder

# Every operation is rounded by itself and in the order in which it is written (lanes.h), so that all processors compute
# the same bits: no -ffast-math, and no fused multiplication and addition where the source has two operations.
FLAGS = "-O3 -fPIC -fopenmp -fno-math-errno -fno-trapping-math -ffp-contract=off"
SOURCES = (
    "step.c",
    "layout.c",
    "network.c",
    "noise.c",
    "layers.c",
    "linear.c",
    "attention.c",
    "bytes.h",
    "tiles.h",
    "lanes.h",
    "threads.h",
)  # the first includes all

SIZES = (
    *("batch", "tokens", "heads", "kv_heads", "size", "room"),  # `room` slots of a row of the cache
    *("start", "begin", "end"),  # slots: the first that is written, and those that are read
    *("mask_row", "mask_token"),  # strides
    "padded",  # whether tokens in slot 0 are padding, which is not computed
)


class Sizes(ctypes.Structure):
    """Sizes of a call, as attention.c has them."""

    _fields_ = tuple((name, ctypes.c_long) for name in SIZES)


class MaskStruct(ctypes.Structure):
    """What tokens see, as attention.c has it."""

    _fields_ = (("added", ctypes.c_void_p), ("window", ctypes.c_long))


@cache
def compiled() -> Any:
    """The C functions; None without a compiler, or on a processor or with a torch that they do not support."""
    return built("native")


def built(processor: str) -> Any:
    """The same, compiled for a processor as the compiler names it: all of them compute the same bits."""
    sources = [Path(__file__).with_name(name) for name in SOURCES]
    compiler, about = shutil.which("cc"), Path("/proc/cpuinfo")
    if compiler is None or not about.is_file():
        return None
    abilities = [line for line in about.read_text().splitlines() if line.startswith(("flags", "Features"))]
    flags = [f"-march={processor}", *FLAGS.split()]
    text = b"".join(one.read_bytes() for one in sources) + f"{compiler} {flags} {abilities[:1]}".encode()
    name = hashlib.sha256(text).hexdigest()
    try:
        library = _opened(compiler, flags, sources[0], f"native-{name[:16]}.so")
    except (OSError, subprocess.SubprocessError):
        return None
    pointer, count = ctypes.c_void_p, ctypes.c_long
    library.linear.argtypes = [pointer, pointer, count, pointer, pointer]
    library.stack.argtypes = [Sizes, count, *[pointer] * 10, count, pointer]
    library.network.argtypes = [pointer, Sizes, *[pointer] * 6, count, ctypes.c_int, *[pointer] * 5, count, pointer]
    library.norm.argtypes = [pointer, pointer, ctypes.c_float, count, count, pointer]
    library.gate.argtypes = [pointer, count, count, pointer]
    library.attend.argtypes = [Sizes, *[pointer] * 6, MaskStruct, pointer]
    library.laws.argtypes, library.laws.restype = [pointer, pointer, count, count, ctypes.c_float, pointer], count
    library.catch_up.argtypes = [pointer, Sizes, *[pointer] * 7, count, pointer]
    library.guess.argtypes = [pointer, Sizes, count, ctypes.c_float, ctypes.c_double, *[pointer] * 9, count, pointer]
    library.follow.argtypes = [pointer, Sizes, count, pointer, ctypes.c_float, ctypes.c_double]
    library.follow.argtypes += [*[pointer] * 8, count, pointer]
    library.guess.restype = library.follow.restype = count
    library.uniforms.argtypes = [pointer, count, count, count, pointer]
    library.draws.argtypes = [pointer, count, count, pointer, pointer]
    uniforms, numbers = [ctypes.c_double] * 2, [*[count] * 3, ctypes.c_int]
    library.verify.argtypes = [*[pointer] * 4, *numbers, *uniforms, *[pointer] * 4]
    library.column_maxima.argtypes = library.lay_out_floats.argtypes = [pointer, count, count, pointer]
    library.lay_out_bytes.argtypes = [pointer, pointer, count, count, count, *[pointer] * 3]
    library.threads_at.argtypes = [ctypes.c_double, count]
    library.learn.argtypes = [ctypes.c_double, count, ctypes.c_int, ctypes.c_double, ctypes.c_int]
    layers = ("linear", "stack", "network", "norm", "gate", "attend", "catch_up", "learn")
    layout = ("column_maxima", "lay_out_floats", "lay_out_bytes")
    for name in ("verify", "draws", "uniforms", *layers, *layout):
        getattr(library, name).restype = None
    return library


def _opened(compiler: str, flags: list[str], source: Path, name: str) -> ctypes.CDLL:
    """The library in the cache folder, compiled if need be; where that cannot be written, in a temporary folder.

    A call of its functions releases the interpreter, and takes milliseconds.
    """
    try:
        library_file = cache_folder().absolute() / name
        if not _is_whole(library_file):
            _compile(compiler, flags, source, library_file)
        return ctypes.CDLL(str(library_file))
    except (OSError, DraftproofError):
        with tempfile.TemporaryDirectory() as scratch:  # an open library outlives its file
            _compile(compiler, flags, source, Path(scratch) / name)
            return ctypes.CDLL(str(Path(scratch) / name))


def _is_whole(library_file: Path) -> bool:
    """Whether the file ends with the hash of what is before it: loading half a library would kill the process."""
    content = library_file.read_bytes() if library_file.exists() else b""
    return hashlib.sha256(content[:-32]).digest() == content[-32:]


def _compile(compiler: str, flags: list[str], source: Path, library_file: Path) -> None:
    library_file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library_file.parent) as scratch:
        part, whole = Path(scratch) / "native.o", Path(scratch) / library_file.name
        # linked without an OpenMP library: it finds torch's, so both use the same threads
        for command in ([*flags, "-c", str(source), "-o", str(part)], ["-shared", str(part), "-o", str(whole)]):
            subprocess.run([compiler, *command], check=True, capture_output=True, timeout=60)
        content = whole.read_bytes()
        whole.write_bytes(content + hashlib.sha256(content).digest())
        whole.replace(library_file)  # atomic, so that nobody loads half a file
