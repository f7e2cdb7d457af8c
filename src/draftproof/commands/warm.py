"""`draftproof warm`: do ahead of time what the first text of a target waits for, as when a container is built."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from draftproof.commands.shared import AnyTarget, Device, Draft, Precision
from draftproof.errors import whole

if TYPE_CHECKING:
    from draftproof.models.base import Model
    from draftproof.models.hf import HFModel

JOBS = 4  # processes that compile kernels side by side
EACH = 3 * 10**9  # bytes of GPU memory for a process beside its weights


def warm(
    target: AnyTarget = "smollm2",
    draft: Draft = "auto",
    dtype: Precision = "float32",
    device: Device = "auto",
    jobs: Annotated[
        int | None, typer.Option(help="Processes that compile for a GPU; as many as fit, at most 4, by default.")
    ] = None,
) -> None:
    """Make ready what the first text of a target waits for: fetched and converted files, compiled kernels or C code."""
    count = None if jobs is None else whole("--jobs", jobs)
    named = NamedModels(target, draft, dtype, device)
    before, start = made_files(), time.perf_counter()
    model, drafts = named.load()
    _say(f"loaded {target}, {_named(drafts)}: {dtype} on {model.network.device}", start)
    _tell_new(before)
    start = time.perf_counter()
    from draftproof.engine.warming import warm_texts

    names, on_gpu = list(warm_texts(model)), model.network.device.type == "cuda"
    share = min(count or (_fitting(model) if on_gpu else 1), len(names))
    before = made_files()
    if share == 1:
        for name in names:
            warm_texts(model)[name](model, drafts)
    else:
        with ProcessPoolExecutor(share, get_context("spawn"), _open, tuple(named)) as pool:
            list(pool.map(_write, names))
    kinds = "1 short text" if len(names) == 1 else f"{len(names)} kinds of short texts in {share} processes"
    _say(f"wrote {kinds}", start)
    _tell_new(before)
    if not on_gpu and not made_files()["C functions"]:
        typer.echo("made no C functions: they need a compiler called cc; without it torch runs the layers, slower")


class NamedModels(NamedTuple):
    """Target and drafters as the options name them."""

    target: str
    draft: str
    dtype: str
    device: str

    def load(self) -> tuple[HFModel, list[Model]]:
        from draftproof.models import check_drafters, drafter, load

        check_drafters(self.draft)
        model = load(self.target, dtype=self.dtype, device=self.device)
        drafts = [drafter(name, model) for name in self.draft.split(",")]
        return model, [one for one in drafts if one is not None]


def made_files() -> dict[str, set[Path]]:
    """What is kept on disk, by kind: models and C functions in the cache folder, and Triton's kernels."""
    from draftproof.paths import cache_folder

    folder = cache_folder()
    return {
        "model": {path for path in (*folder.glob("*/"), *folder.glob("gguf/*/")) if path.name != "gguf"},
        "C functions": set(folder.glob("native-*.so")),
        "kernels": set(_kernels().glob("*")),
    }


def _kernels() -> Path:
    """Triton's own cache folder."""
    home = os.environ.get("TRITON_HOME", str(Path("~").expanduser()))
    return Path(os.environ.get("TRITON_CACHE_DIR", f"{home}/.triton/cache"))


def _tell_new(before: dict[str, set[Path]]) -> None:
    """A line for each kind of files that is new."""
    for kind, files in made_files().items():
        new = sorted(files - before[kind])
        if len(new) > 1:
            typer.echo(f"made {len(new)} {kind} in {new[0].parent}")
        elif new:
            typer.echo(f"made {kind}: {new[0]}")


def _say(what: str, start: float) -> None:
    typer.echo(f"{what} ({time.perf_counter() - start:.1f} s)")


def _named(drafts: list[Model]) -> str:
    return f"draft {' + '.join(one.name for one in drafts)}" if drafts else "no draft"


def _fitting(model: HFModel) -> int:
    """How many processes have room on the GPU, beside the weights that are there now."""
    import torch

    from draftproof.models.base import facts

    weights = facts(model).weights * model.network.dtype.itemsize
    return max(1, min(JOBS, os.cpu_count() or 1, int(torch.cuda.mem_get_info()[0] / (2 * weights + EACH))))


_OPENED: dict[str, Any] = {}  # of a process that writes texts


def _open(*named: str) -> None:
    _OPENED["models"] = NamedModels(*named).load()


def _write(name: str) -> None:
    from draftproof.engine.warming import warm_texts

    model, drafts = _OPENED["models"]
    warm_texts(model)[name](model, drafts)
