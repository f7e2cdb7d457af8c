"""Convert GGUF files to model folders that load fast; the copies are kept in the cache folder."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
import time
from contextlib import ExitStack, redirect_stderr, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from draftproof.errors import first_line
from draftproof.models.files import packed
from draftproof.models.files.lock import locked
from draftproof.paths import cache_folder

LIMIT = 20_000_000_000  # bytes of all copies together; those least recently used go first
IN_USE = 3600  # seconds since a copy was opened within which another process may still be reading it
FORMAT = 1  # of a copy
PART = ".part"  # ends the name of a folder that is being written or removed


def converted(gguf: Path) -> Path | tuple[Any, Any]:
    """The folder with the converted copy of a GGUF file, which the first call makes.

    Where the cache folder cannot be written the file is converted on every call, and network and tokenizer returned.
    """
    folder = place(gguf)
    unkept = None if folder.is_dir() else _keep(gguf, folder)
    if unkept is not None:
        return unkept
    with suppress(OSError):  # a cache that cannot be written
        os.utime(folder)
    return folder


def read(folder: Path, precision: Any) -> tuple[Any, Any]:
    """Network and tokenizer that `save` wrote."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, config.architectures[0])
    weights = packed.read(folder, precision)
    network, report = kind.from_pretrained(
        None, config=config, state_dict=weights, dtype=precision, output_loading_info=True
    )
    if report["missing_keys"] or report["unexpected_keys"]:
        raise ValueError(f"{folder / packed.FILE} does not contain the weights of its config.json")
    network.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    return network, transformers.AutoTokenizer.from_pretrained(folder)


def convert(gguf: Path) -> tuple[Any, Any]:
    """Network in float32 and tokenizer of a GGUF file, by transformers. It takes a while, so it is announced."""
    print(f"converting {gguf.name}", file=sys.stderr, flush=True)
    import torch
    import transformers

    as_dense = getattr(transformers, "GgufConfig", None)  # newer versions keep GGUF blocks packed by default
    extra = {} if as_dense is None else {"quantization_config": as_dense(dequantize=True)}
    with redirect_stderr(io.StringIO()):  # it draws a progress bar that cannot be switched off
        tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        network = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, **extra
        )
    for leftover in ("quantization_config", "_name_or_path"):
        if hasattr(network.config, leftover):
            delattr(network.config, leftover)
    network.config.architectures = [type(network).__name__]
    return network.eval(), tokenizer


def save(network: Any, tokenizer: Any, gguf: Path, folder: Path) -> None:
    """Write a model folder in one piece: nobody sees a part of it. The caller holds the lock of this folder."""
    scratch = folder.with_name(f"{folder.name}{PART}")
    shutil.rmtree(scratch, ignore_errors=True)  # left by a process that was killed
    scratch.mkdir()
    try:
        network.config.save_pretrained(scratch)
        network.generation_config.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        packed.save(packed.state(network), gguf, scratch)
        shutil.copymode(scratch / "config.json", scratch / packed.FILE)  # who may read one may read both
        scratch.replace(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def place(gguf: Path) -> Path:
    """Where the copy of this file is, or will be: another file, or a changed one, has another place."""
    about = gguf.stat()
    facts = (gguf.resolve(), about.st_size, about.st_mtime_ns, FORMAT, version("transformers"))
    return cache_folder() / "gguf" / f"{gguf.stem}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"


def _keep(gguf: Path, folder: Path) -> tuple[Any, Any] | None:
    """Convert the file into the folder; what it was converted to is returned if it cannot be kept there."""
    with ExitStack() as stack:
        problem: OSError | None = None
        try:
            stack.enter_context(locked(folder.with_name("lock"), "converting a GGUF file"))
        except OSError as error:
            problem = error
        if folder.is_dir():  # another process made it
            return None
        made = convert(gguf)
        if problem is None:
            try:
                save(*made, gguf, folder)
                _clear(folder.parent)
                return None
            except OSError as error:
                problem = error
    reason = problem.strerror or first_line(problem)
    print(
        f"note: the converted {gguf.name} cannot be kept in {cache_folder()} ({reason}), so the next run converts it "
        "again: set DRAFTPROOF_CACHE to another folder",
        file=sys.stderr,
        flush=True,
    )
    return made


def _clear(copies: Path) -> None:
    """Remove what killed processes left, and the copies least recently used beyond the limit."""
    total, folders = 0, [folder for folder in copies.iterdir() if folder.is_dir()]
    for folder in sorted(folders, key=lambda folder: folder.stat().st_mtime, reverse=True):
        total += sum(file.stat().st_size for file in folder.iterdir())
        if folder.suffix == PART:
            shutil.rmtree(folder, ignore_errors=True)
        elif total > LIMIT and folder.stat().st_mtime < time.time() - IN_USE:
            leaving = folder.with_name(f"{folder.name}{PART}")
            folder.rename(leaving)  # at once: nobody finds half a copy
            shutil.rmtree(leaving, ignore_errors=True)
