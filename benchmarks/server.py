"""A server under load on one machine: a storm of clients, a kill, speed, waiting times, and an audit of its texts.

`python -m benchmarks.server` starts real `draftproof serve` processes, prints what it finds and writes a row for each
measure to benchmarks/results/server.json. `--only storm kill` chooses measures. Exit status 1: one of them does not
hold.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.load.drafting import by_clients
from benchmarks.load.exactness import audited, audited_head
from benchmarks.load.peers import beside_vllm
from benchmarks.load.speed import through_server
from benchmarks.load.survival import after_kill, after_storm
from benchmarks.load.waiting import long_prompt, never_reading, second_turn, unread_stream
from draftproof.bench.rows import facts

RESULTS = Path(__file__).parent / "results" / "server.json"
VLLM = ("beside vLLM in float32", "beside vLLM in bfloat16")
MEASURES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "storm": lambda o: after_storm("tiny", o.requests, o.clients, o.seed),
    "kill": lambda o: after_kill("tiny", max(o.requests // 4, o.clients), o.clients, o.seed),
    "speed": lambda o: through_server(o.target, o.dtype, 16, o.tokens, o.rounds, o.seed),
    VLLM[0]: lambda o: beside_vllm(o.vllm, "float32", o.threads, 16, o.tokens, o.rounds, o.seed),
    VLLM[1]: lambda o: beside_vllm(o.vllm, "bfloat16", o.threads, 16, o.tokens, o.rounds, o.seed),
    "drafting in float32": lambda o: by_clients(o.target, "float32", o.threads, o.tokens, o.rounds, o.seed),
    "drafting in int8": lambda o: by_clients(o.target, "int8", o.threads, o.tokens, o.rounds, o.seed),
    "second turn": lambda o: second_turn(o.target, o.dtype, o.rounds, o.history, o.seed),
    "never reading": lambda o: never_reading(o.target, o.dtype, o.rounds, o.tokens, o.seed),
    "unread stream": lambda o: unread_stream("tiny", o.seed),
    "long prompt": lambda o: long_prompt(o.target, o.dtype, o.rounds, o.prompt, o.seed),
    "audit, ngram": lambda o: audited("tiny", "ngram", o.audited, o.rows),
    "audit, head": lambda o: audited_head("tiny", o.head, o.audited, o.rows),
    "audit, prediction": lambda o: audited("tiny", "prediction", o.audited, o.rows),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(MEASURES), metavar="MEASURE")
    parser.add_argument("--requests", type=int, default=2000, help="of the storm, which is warmed up by as many")
    parser.add_argument("--clients", type=int, default=64, help="of the storm")
    parser.add_argument("--target", default="smollm2", help="where time is measured")
    parser.add_argument("--dtype", default="int8", help="of that target")
    parser.add_argument("--tokens", type=int, default=96, help="of each text where speed is measured")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="of each server, beside vLLM and beside plain sampling"
    )
    parser.add_argument("--vllm", type=Path, help="the python of an environment with vLLM")
    parser.add_argument("--rounds", type=int, default=5, help="of which medians are taken")
    parser.add_argument("--history", type=int, default=1500, help="tokens of the first turn")
    parser.add_argument("--prompt", type=int, default=4000, help="tokens of the long prompt")
    parser.add_argument("--audited", type=int, default=50_000, help="tokens for each audit")
    parser.add_argument("--rows", type=int, default=64, help="texts side by side for the audits")
    parser.add_argument("--head", type=Path, help="a folder for the small target's head; trained there if it is empty")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.only is None:
        options.only = [name for name in MEASURES if name not in VLLM or options.vllm]
    if options.vllm is None and set(VLLM) & set(options.only):
        parser.error(f"{VLLM[0]!r} needs --vllm, the python of an environment with vLLM")
    words = sys.argv[1:]
    for place in ("--results", "--vllm", "--head"):  # on this machine
        if place in words:
            del words[words.index(place) : words.index(place) + 2]
    where = {**facts("cpu")._asdict(), "command": shlex.join(["python", "-m", "benchmarks.server", *words])}
    all_hold = True
    for name in options.only:
        found = MEASURES[name](options)
        print(f"{name}: {json.dumps(found, ensure_ascii=False)}", flush=True)
        loads = [round(load, 1) for load in os.getloadavg()]
        keep(options.results, name, {**found, "seed": options.seed, "load_average": loads, **where})
        all_hold &= found["holds"]
    return 0 if all_hold else 1


def keep(results: Path, name: str, row: dict[str, Any]) -> None:
    """One more row in the file, or a new one in its place."""
    rows = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    results.write_text(json.dumps({**rows, name: row}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
