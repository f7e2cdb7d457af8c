"""What is left of a storm: nothing but the server, which answers as before."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks.load.process import ServerProcess, serving
from benchmarks.load.storm import BODY, COMPLETIONS, WITNESS, faults, plan, storm, summary

IDLE = 60.0  # seconds after which a server must be idle
GROWTH = 1.10  # of the memory: what a storm may leave behind, over what the one before left


def _witness(server: ServerProcess) -> str:
    return str(server.post(COMPLETIONS, WITNESS)["choices"][0]["text"])


def after_storm(target: str, requests: int, clients: int, seed: int) -> dict[str, Any]:
    """A storm to warm up, then the same kind of storm with other requests: endings, rows, memory and a seeded text."""
    with serving("--target", target, "--body", str(BODY)) as server:
        before = _witness(server)
        memory = [server.memory()]
        found: list[str] = []
        for number in range(2):
            planned, begun = plan(requests, seed + number), time.perf_counter()
            endings = asyncio.run(storm(server.url, planned, clients))
            seconds = time.perf_counter() - begun
            found += faults(endings, len(planned), before)
            found += [] if server.is_idle(IDLE) else [f"rows are in use {IDLE:g} seconds after the storm"]
            memory.append(server.memory())
        found += [] if _witness(server) == before else ["another text under the same seed after the storm"]
        found += [f"log: {line}" for line in server.logged().splitlines()]
        growth = memory[2] / memory[1]
        return {
            "target": target,
            "requests": requests,
            "clients": clients,
            "seconds": round(seconds, 1),
            "endings": summary(endings),
            "memory_mb": [round(size / 1e6) for size in memory],  # at the start, after the first storm and the second
            "memory_growth": round(growth, 3),
            "faults": found[:20],
            "holds": not found and growth <= GROWTH,
        }


def after_kill(target: str, requests: int, clients: int, seed: int) -> dict[str, Any]:
    """SIGKILL in the middle of a storm: every client learns it, and the next server at this port answers as before."""
    options = ("--target", target, "--body", str(BODY))
    with serving(*options) as server:
        before = _witness(server)
        endings, middle = asyncio.run(_killed(server, plan(requests, seed), clients))
        port = str(server.port)
    begun = time.perf_counter()
    with serving(*options, "--port", port) as server:
        ready = time.perf_counter() - begun
        same = _witness(server) == before
        log = server.logged()
    return {
        "target": target,
        "requests": requests,
        "clients": clients,
        "running_when_killed": middle,
        "endings": summary(endings),
        "ready_again_s": round(ready, 1),
        "same_text": same,
        "log": log,
        "holds": same and not log and len(endings) == requests and middle > 0,
    }


async def _killed(server: ServerProcess, planned: Any, clients: int) -> tuple[list[Any], int]:
    """The endings of a storm whose server is killed once it has written a token for each request."""
    storming = asyncio.ensure_future(storm(server.url, planned, clients))
    running = 0
    while not storming.done():
        now = await asyncio.to_thread(server.get, "/stats")
        if now["tokens"] > len(planned) and now["rows_in_use"]:
            running = now["rows_in_use"] + now["waiting"]
            await asyncio.to_thread(server.kill)
            break
        await asyncio.sleep(0.02)
    return await storming, running
