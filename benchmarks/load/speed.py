"""Tokens a second through the server, beside the bare Engine on the same prompts, in the same run, in turns."""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Any

import httpx

from benchmarks.load.clients import TIMEOUT, read
from benchmarks.load.process import ServerProcess, serving
from benchmarks.load.storm import COMPLETIONS
from draftproof import Engine, Sampling, load
from draftproof.prompts import PROMPTS


def through_server(target: str, dtype: str, clients: int, tokens: int, rounds: int, seed: int) -> dict[str, Any]:
    """Each round has new seeds; both make the same texts."""
    speeds: dict[str, list[float]] = {"server": [], "engine": []}
    settings = ("--rows", str(clients), "--length", str(tokens + 64), "--kept", "0")
    with serving("--target", target, "--dtype", dtype, *settings) as server:
        engine = Engine(load(target, dtype=dtype), rows=clients, length=tokens + 64, kept=0)
        for number in range(rounds + 1):
            bodies = _bodies(clients, tokens, seed + number)
            served, theirs = asyncio.run(_served(server, bodies))
            bare, ours = _bare(engine, bodies)
            if theirs != ours:
                raise RuntimeError("the server's texts are not the engine's: their speeds cannot be compared")
            if number:  # the first round warms up
                speeds["server"].append(served)
                speeds["engine"].append(bare)
    ratio = median(a / b for a, b in zip(speeds["server"], speeds["engine"], strict=True))
    return {
        "target": target,
        "dtype": dtype,
        "clients": clients,
        "tokens": tokens,
        "rounds": rounds,
        "tokens_per_s": {name: round(median(own), 1) for name, own in speeds.items()},
        "ratio": round(ratio, 3),
        "goal": "at least 0.93",
        "holds": ratio >= 0.93,
    }


def _bodies(clients: int, tokens: int, seed: int) -> list[dict[str, Any]]:
    common = {"max_tokens": tokens, "ignore_eos": True, "stream_options": {"include_usage": True}}
    return [{**common, "prompt": PROMPTS[i % len(PROMPTS)], "seed": 1000 * seed + i} for i in range(clients)]


async def _served(server: ServerProcess, bodies: list[dict[str, Any]]) -> tuple[float, list[str]]:
    limits = httpx.Limits(max_connections=len(bodies))
    async with httpx.AsyncClient(timeout=TIMEOUT, limits=limits) as client:
        begun = time.perf_counter()
        found = await asyncio.gather(*(read(client, server.url + COMPLETIONS, body) for body in bodies))
        spent = time.perf_counter() - begun
    return sum(one.tokens for one in found) / spent, [one.text for one in found]


def _bare(engine: Engine, bodies: list[dict[str, Any]]) -> tuple[float, list[str]]:
    begun = time.perf_counter()
    requests = [
        engine.add_request(
            body["prompt"],
            max_new_tokens=body["max_tokens"],
            seed=body["seed"],
            sampling=Sampling(end_tokens=()),
            chat=False,
        )
        for body in bodies
    ]
    while not engine.is_finished:
        engine.step()
    spent = time.perf_counter() - begun
    outputs = [request.output for request in requests]
    return sum(len(output.tokens) for output in outputs) / spent, [output.text for output in outputs]
