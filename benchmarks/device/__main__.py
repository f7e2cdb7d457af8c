"""The public surface on a device: `python -m benchmarks.device` runs every documented command and the matrix of cases.

Each case must raise nothing, and its texts must be those of the eager stepper on the CPU where the seed fixes them, or
follow the law of the reference where it does not. A row for each is appended to benchmarks/results/device.jsonl; cases
that hold at this commit are not run again. Exit status 1: a case failed.

    python -m benchmarks.device                              on a GPU, with all cases
    python -m benchmarks.device --device cpu --quick         every value once, with small sizes
    python -m benchmarks.device --only gemma3 --only "batch 32"   cases whose names contain each of these
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.device import cases, commands, table
from benchmarks.device.workers import Row, Worker, answer, run_all
from draftproof.bench.rows import append, facts

LIMIT = 240.0  # seconds for a case: with a cold cache most of them compile
WORKERS = 6


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m benchmarks.device", description=__doc__.splitlines()[0])
    asked.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu")
    asked.add_argument("--quick", action="store_true", help="every value once, with small sizes, and no commands")
    asked.add_argument("--only", action="append", default=[], help="cases whose names contain this; may be repeated")
    asked.add_argument("--workers", type=int, default=WORKERS, help="processes that share the device")
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--fresh", action="store_true", help="run cases again that hold at this commit")
    asked.add_argument("--results", type=Path, default=table.RESULTS)
    asked.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.worker:
        return _work(given.device, given.seed)
    about = {**facts(given.device.partition(":")[0])._asdict(), "device": given.device, "seed": given.seed}
    about["command"] = "python -m benchmarks.device"
    names = {name: case for name, case in known(given.quick).items() if all(part in name for part in given.only)}
    if not names:
        print(f"no case has {' and '.join(map(repr, given.only))} in its name", file=sys.stderr)
        return 2
    rows = {} if given.fresh else table.done(given.results, about["commit"], given.device)
    rows = {name: row for name, row in rows.items() if name in names}
    if rows:
        print(f"{len(rows)} of {len(names)} cases hold at {about['commit']} already")
    start, threads = time.perf_counter(), max(1, (os.cpu_count() or 1) // given.workers)
    waiting = {name: names[name] for name in names if name not in rows}
    for name, row in run_all(waiting, lambda: Worker(given.device, given.seed, threads), given.workers, LIMIT):
        rows[name] = {"case": name, **row, **about}
        append(given.results, [rows[name]])
        print(f"{'ok    ' if row['ok'] else 'FAILED'} {row['seconds']:6.1f} s  {name}: {row['error'] or row['check']}")
        sys.stdout.flush()
    print(table.summary(list(rows.values())))
    print(f"{time.perf_counter() - start:.0f} s by {given.workers} workers")
    return 0 if all(row["ok"] for row in rows.values()) else 1


def known(quick: bool = False) -> dict[str, Any]:
    """All cases by name: commands first, which take longest to start."""
    found: dict[str, Any] = {} if quick else {command.name: command for command in commands.documented()}
    return found | {case.name: case for case in cases.matrix(quick)}


def _work(device: str, seed: int) -> int:
    answer(lambda asked: measured(_case(asked), device, seed))
    return 0


def _case(asked: Row) -> Any:
    """A case as a worker is told it."""
    kind: Any = commands.Command if "words" in asked else cases.Case
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in asked.items()})


def measured(case: Any, device: str, seed: int) -> Row:
    """Run a case and say how it went."""
    is_command = isinstance(case, commands.Command)
    parts: Row = {"door": "command"} if is_command else case._asdict()
    start, row = time.perf_counter(), {"ok": True, "check": "", "error": ""}
    try:
        row["check"] = _checked(case, device, seed)
        if not is_command:
            from benchmarks.device.running import by_graph

            parts["stepper"] = "graph" if by_graph(case, device) else "eager"
    except Exception as error:
        row |= {"ok": False, "error": _said(error)}
        traceback.print_exc()
    return {**parts, **row, "seconds": round(time.perf_counter() - start, 2)}


def _said(error: Exception) -> str:
    """One line about an error; where it was raised, unless a check raised it."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, AssertionError):
        return line
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {line}"


def _checked(case: Any, device: str, seed: int) -> str:
    if isinstance(case, commands.Command):
        why_not = case.why_not or ("the default model is not here" if commands.needs_default_model(case) else "")
        return f"left out: {why_not}" if why_not else commands.run(case, device)
    from benchmarks.device.checking import check

    return check(case, device, seed)


if __name__ == "__main__":
    sys.exit(main())
