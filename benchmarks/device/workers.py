"""Processes that share the device: each is told a case and answers with a row.

Kernels of several cases are so compiled side by side, and a case that ends its process costs no other. A process whose
case failed is not used again, because an error on a GPU can stay with it.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]


class Worker:
    """A process that runs cases one after another."""

    def __init__(self, device: str, seed: int, threads: int) -> None:
        command = [sys.executable, "-m", "benchmarks.device", "--worker", "--device", device, "--seed", str(seed)]
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        settings = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=settings, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def run(self, case: Any, limit: float) -> Row:
        """The row of a case; of one that ends the process or takes too long, a row that says so."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        start = time.perf_counter()
        late = threading.Timer(limit, self.process.kill)
        late.start()
        try:
            self.process.stdin.write(json.dumps(case._asdict()) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = ""
        finally:
            in_time = late.is_alive()
            late.cancel()
        if line:
            return json.loads(line)  # type: ignore[no-any-return]
        error = f"the process ended with {self.process.wait()}" if in_time else f"took longer than {limit:.0f} s"
        return {"ok": False, "check": "", "error": error, "seconds": round(time.perf_counter() - start, 2)}

    def end(self) -> None:
        """Let the process go."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):  # it may have ended before it read all
                pipe.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def run_all(
    cases: Mapping[str, Any], opens: Callable[[], Worker], count: int, limit: float
) -> Iterator[tuple[str, Row]]:
    """The name of each case with its row, as they end, by so many workers; a case is a NamedTuple."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[str, Row]] = queue.SimpleQueue()
    for name in cases:
        waiting.put(name)

    def work() -> None:
        worker = None
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                break
            worker = worker or opens()
            row = worker.run(cases[name], limit)
            done.put((name, row))
            if not row["ok"]:
                worker.end()
                worker = None
        if worker is not None:
            worker.end()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(count, len(cases)))]
    for thread in threads:
        thread.start()
    for _ in cases:
        yield done.get()
    for thread in threads:
        thread.join()


def answer(run: Callable[[Row], Row]) -> None:
    """A worker's own side: a case on each line of standard input, a row for it on standard output."""
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # what anything else prints is no row
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=out, flush=True)
