"""Whether drafting pays or stops, for any number of clients: the default beside the server's plain mode, in turns."""

from __future__ import annotations

import asyncio
from statistics import median
from typing import Any

from benchmarks.load.peers import LENGTH, PLAIN, Server, Turn, ratios, turn
from benchmarks.load.process import serving

CLIENTS = (1, 2, 4, 8, 16, 32)
LEAST = 0.98  # of plain sampling's speed


def by_clients(target: str, dtype: str, threads: int, tokens: int, rounds: int, seed: int) -> dict[str, Any]:
    """Speeds and times to first token for each number of clients, with drafts as the server chooses and without any.

    Judged by the time of all cores together: other programs on the machine change that least.
    """
    turns: dict[str, dict[str, list[Turn]]] = {str(clients): {} for clients in CLIENTS}
    options = ("--target", target, "--dtype", dtype, "--rows", str(max(CLIENTS)), "--length", str(LENGTH))
    with serving(*options, "--threads", str(threads), "--timeout", "3600") as server:
        modes = {
            "default": Server(server.url, server.process.pid, {}),
            "plain": Server(server.url, server.process.pid, PLAIN),
        }
        for number in range(rounds + 1):
            for clients in CLIENTS:
                order = list(modes) if number % 2 else list(reversed(modes))
                for mode in order:
                    seen = asyncio.run(turn(modes[mode], clients, tokens, seed + number))
                    print(clients, mode, seen, flush=True)
                    if number:  # the first round warms up
                        turns[str(clients)].setdefault(mode, []).append(seen)
    against = {clients: ratios(own["default"], own["plain"]) for clients, own in turns.items()}
    return {
        "target": target,
        "dtype": dtype,
        "threads": threads,
        "tokens": tokens,
        "rounds": rounds,
        **{
            field: {
                clients: {mode: round(median(getattr(one, field) for one in own[mode]), 3) for mode in modes}
                for clients, own in turns.items()
            }
            for field in Turn._fields
        },
        "ratios": against,
        "goal": f"at least {LEAST} in tokens_per_cpu_s for any number of clients",
        "holds": all(found["tokens_per_cpu_s"] >= LEAST for found in against.values()),
    }
