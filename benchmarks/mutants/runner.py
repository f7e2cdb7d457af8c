"""Run mutants against tests: one process that has imported the slow libraries forks a child for each mutant.

Every worker has a copy of the repository in which one file is changed at a time, so that tests that start processes or
read sources see the fault too. The copy's bytecode is checked by hash: a changed file is compiled anew even if it is as
long as before and was written within the same second.
"""

from __future__ import annotations

import compileall
import json
import multiprocessing
import os
import py_compile
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.mutants.mutant import PACKAGE, Mutant

COPIED = ("src", "tests", "benchmarks", "scripts", "docs", "README.md", "CONTRIBUTING.md", "pyproject.toml")
MEMORY = 12 * 2**30  # address space of a child
LONGEST = 15  # seconds of processor time that a single test may take
SLOW = ("torch", "transformers", "scipy.stats", "scipy.optimize", "hypothesis", "pytest", "_pytest.doctest", "triton")
SLOW += ("torch._dynamo", "triton.language", "transformers.models.llama.modeling_llama", "tokenizers", "xdist.plugin")


class Outcome(NamedTuple):
    """What became of a mutant under a list of tests."""

    fate: str  # "killed", "survived", or "broken": the tests could not be run
    by: str  # the first test that failed, or what else ended the run
    seconds: float  # of processor time


class Trial(NamedTuple):
    """A mutant and the tests it is run against; no mutant: the tests as they are."""

    mutant: Mutant | None
    tests: Sequence[str]
    limit: float  # seconds of processor time


def import_slow() -> None:
    """Import what tests take seconds to import, and nothing of draftproof."""
    os.environ["TRITON_INTERPRET"] = "1"
    for name in SLOW:
        __import__(name)
    import torch

    torch.set_num_threads(1)
    assert not any(name.split(".")[0] in ("draftproof", "tests") for name in sys.modules)


class Workers:
    """Copies of the repository, in each of which one trial runs at a time."""

    def __init__(self, root: Path, scratch: Path, count: int) -> None:
        self.root, self.scratch = root, scratch
        shutil.rmtree(scratch, ignore_errors=True)
        self.trees = [scratch / f"tree-{i}" for i in range(count)]
        for tree in self.trees:
            _copy(root, tree)

    def run(self, trials: Iterator[Trial]) -> Iterator[tuple[Trial, Outcome]]:
        """Run all trials, as many at a time as there are copies; results come as they are ready."""
        fork = multiprocessing.get_context("fork")
        running: dict[Path, tuple[Trial, Any, float]] = {}
        waiting: Trial | None = next(trials, None)
        while running or waiting is not None:
            for tree in self.trees:
                if tree not in running and waiting is not None:
                    self._write(tree, waiting.mutant)
                    _result(tree).unlink(missing_ok=True)
                    child = fork.Process(target=_child, args=(tree, waiting, self._cache(tree, waiting.mutant)))
                    child.start()
                    running[tree] = waiting, child, time.monotonic()
                    waiting = next(trials, None)
            for tree, (trial, child, started) in list(running.items()):
                late = time.monotonic() - started > 60 + 8 * trial.limit
                if late:
                    os.killpg(child.pid, signal.SIGKILL)
                if late or not child.is_alive():
                    child.join()
                    self._restore(tree, trial.mutant)
                    del running[tree]
                    yield trial, _outcome(tree, child.exitcode, late)
            time.sleep(0.02)

    def _write(self, tree: Path, mutant: Mutant | None) -> None:
        if mutant is not None:
            (tree / PACKAGE / mutant.file).write_text(mutant.text, encoding="utf-8")

    def _restore(self, tree: Path, mutant: Mutant | None) -> None:
        if mutant is not None:
            shutil.copyfile(self.root / PACKAGE / mutant.file, tree / PACKAGE / mutant.file)

    def _cache(self, tree: Path, mutant: Mutant | None) -> Path | None:
        """A cache folder of its own for mutants in C, whose libraries nobody will need again."""
        if mutant is None or not mutant.file.endswith((".c", ".h")):
            return None
        folder = tree.with_name(f"{tree.name}-cache")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        usual = Path(os.environ.get("DRAFTPROOF_CACHE") or Path.home() / ".cache" / "draftproof")
        for entry in usual.iterdir() if usual.is_dir() else ():
            (folder / entry.name).symlink_to(entry)
        return folder


def _copy(root: Path, tree: Path) -> None:
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis"))
        else:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, tree / name)
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(tree / "src", quiet=2, invalidation_mode=mode)


def _result(tree: Path) -> Path:
    return tree.with_suffix(".json")


def _outcome(tree: Path, code: int, late: bool) -> Outcome:
    if late:
        return Outcome("killed", "no end: stopped by the clock", 0.0)
    try:
        return Outcome(*json.loads(_result(tree).read_text()))
    except FileNotFoundError:  # it ended without a word
        cause = {-signal.SIGXCPU: "no end: out of processor time"}.get(code, f"the process ended with {code}")
        return Outcome("killed", cause, 0.0)


def _child(tree: Path, trial: Trial, cache: Path | None) -> None:
    """Run the tests in this process, which was forked for it."""
    os.setsid()
    log = os.open(tree.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (int(trial.limit) + 1, int(trial.limit) + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(tree)
    paths = [str(tree / "src"), str(tree)]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.path[:0] = paths
    sys.dont_write_bytecode = trial.mutant is not None
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]
    if cache is not None:
        os.environ["DRAFTPROOF_CACHE"] = str(cache)
    try:
        outcome = _tested(trial.tests)
    except BaseException:
        outcome = Outcome("broken", traceback.format_exc().strip().splitlines()[-1], 0.0)
    spent = resource.getrusage(resource.RUSAGE_SELF)
    _result(tree).write_text(json.dumps(outcome._replace(seconds=round(spent.ru_utime + spent.ru_stime, 2))))
    os._exit(0)  # threads that a mutant left hanging must not keep the process


class _FirstFailure:
    """A plugin of pytest that notes the first test that failed, or the first file that could not be imported."""

    by = ""

    def pytest_runtest_setup(self) -> None:
        """A test that takes longer than any does not end."""
        spent, (_, most) = resource.getrusage(resource.RUSAGE_SELF), resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (min(int(spent.ru_utime + spent.ru_stime) + LONGEST, most), most))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.by:
            self.by = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.by:
            self.by = report.nodeid


def _tested(tests: Sequence[str]) -> Outcome:
    import pytest

    first = _FirstFailure()
    quiet = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # what was imported before is not rewritten
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--tb=line", *quiet, *tests], plugins=[first])
    if code == pytest.ExitCode.OK:
        return Outcome("survived", "", 0.0)
    if first.by:
        return Outcome("killed", first.by, 0.0)
    return Outcome("broken", f"pytest ended with {code!r}", 0.0)
