"""How long clients wait: for the second turn of a chat, beside a client that never reads, beside a long prompt."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import httpx

from benchmarks.load.clients import TIMEOUT, Stream, open_silent, read
from benchmarks.load.process import ServerProcess, serving
from benchmarks.load.storm import CHAT, COMPLETIONS
from draftproof.prompts import PROMPTS

WORDS = ("sea", "light", "keeper", "letter", "window", "north", "river", "stone", "paper", "garden", "winter", "train")
OTHERS = 4  # clients that read while something else happens
CALM = 50  # tokens that each of them has before it happens


def _prose(server: ServerProcess, tokens: int, rng: random.Random) -> str:
    """A text of about so many tokens, and like no other."""
    text = " ".join(rng.choice(WORDS) for _ in range(tokens))
    ids = server.post("/tokenize", {"prompt": text})["tokens"][:tokens]
    return str(server.post("/detokenize", {"tokens": ids})["prompt"])


def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=TIMEOUT)


def second_turn(target: str, dtype: str, rounds: int, history: int, seed: int) -> dict[str, Any]:
    """Time to first token of a chat's second turn over that of the first, whose prompt is long and new."""
    rng = random.Random(seed)
    firsts, seconds = [], []
    with serving("--target", target, "--dtype", dtype, "--length", str(history + 600)) as server:
        for number in range(rounds + 1):
            messages = [{"role": "user", "content": _prose(server, history, rng)}]
            spent, answer = asyncio.run(_first_token(server, messages, seed))
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": PROMPTS[0]}]
            again, _ = asyncio.run(_first_token(server, messages, seed))
            if number:  # the first round warms up
                firsts.append(spent)
                seconds.append(again)
    ratio = median(b / a for a, b in zip(firsts, seconds, strict=True))
    return {
        "target": target,
        "dtype": dtype,
        "history_tokens": history,
        "rounds": rounds,
        "first_turn_s": round(median(firsts), 3),
        "second_turn_s": round(median(seconds), 3),
        "ratio": round(ratio, 3),
        "goal": "at most 0.2",
        "holds": ratio <= 0.2,
    }


async def _first_token(server: ServerProcess, messages: list[dict[str, str]], seed: int) -> tuple[float, str]:
    body = {"messages": messages, "max_tokens": 24, "seed": seed}
    async with _client() as client:
        begun = time.perf_counter()
        found = await read(client, server.url + CHAT, body)
    return found.times[0] - begun, found.text


def never_reading(target: str, dtype: str, rounds: int, tokens: int, seed: int) -> dict[str, Any]:
    """Tokens a second of others, alone, beside a client that reads a long text, and beside one that never does."""
    speeds: dict[str, list[float]] = {"alone": [], "beside a reader": [], "beside one that never reads": []}
    options = ("--target", target, "--dtype", dtype, "--length", "1536", "--kept", "0")
    with serving(*options) as server:
        asyncio.run(_speed(server, "alone", 16, seed))
        for number in range(rounds):
            for name, own in speeds.items():
                own.append(asyncio.run(_speed(server, name, tokens, seed + number)))
    ratios = {
        other: round(
            median(a / b for a, b in zip(speeds["beside one that never reads"], speeds[other], strict=True)), 3
        )
        for other in ("alone", "beside a reader")
    }
    return {
        "target": target,
        "dtype": dtype,
        "others": OTHERS,
        "tokens": tokens,
        "rounds": rounds,
        "tokens_per_s": {name: round(median(own), 1) for name, own in speeds.items()},
        "ratio_to": ratios,
        "goal": "beside one that never reads as fast as beside a reader: at least 0.9",
        "holds": ratios["beside a reader"] >= 0.9,
    }


def _bodies(tokens: int, seed: int) -> list[dict[str, Any]]:
    common = {"max_tokens": tokens, "ignore_eos": True, "stream_options": {"include_usage": True}}
    return [{**common, "prompt": PROMPTS[i % len(PROMPTS)], "seed": seed * OTHERS + i} for i in range(OTHERS)]


async def _speed(server: ServerProcess, beside: str, tokens: int, seed: int) -> float:
    """Tokens a second of all others together; details make the stream larger than any buffer of the system."""
    url = server.url + COMPLETIONS
    heavy = {"prompt": PROMPTS[3], "max_tokens": 1400, "ignore_eos": True, "seed": seed, "logprobs": 20}
    async with _client() as client:
        held, reading = None, None
        if beside == "beside one that never reads":
            held = await open_silent(url, {**heavy, "draftproof": {"details": True}})
        elif beside == "beside a reader":
            reading = asyncio.ensure_future(read(client, url, {**heavy, "draftproof": {"details": True}}))
        if beside != "alone":
            while not (await asyncio.to_thread(server.get, "/stats"))["rows_in_use"]:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.5)
        begun = time.perf_counter()
        found = await asyncio.gather(*(read(client, url, body) for body in _bodies(tokens, seed)))
        spent = time.perf_counter() - begun
        if held is not None:
            held.close()
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
    if not await asyncio.to_thread(server.is_idle, 60):
        raise RuntimeError("rows are in use after all clients have gone")
    return sum(one.tokens for one in found) / spent


def unread_stream(target: str, seed: int) -> dict[str, Any]:
    """Tokens a second of others while the server holds a finished stream that nobody reads; who reads late gets all."""
    with serving("--target", target) as server:
        asyncio.run(_speed(server, "alone", 16, seed))
        alone = [asyncio.run(_speed(server, "alone", 48, seed + number)) for number in range(5)]
        memory = server.memory()
        beside, size, is_whole = asyncio.run(_unread(server, seed))
        grown = server.memory() - memory
    ratio = median(beside) / median(alone)
    return {
        "target": target,
        "tokens_per_s": {"alone": round(median(alone), 1), "beside an unread stream": round(median(beside), 1)},
        "ratio": round(ratio, 3),
        "stream_mb": round(size / 1e6, 1),
        "is_whole_for_a_late_reader": is_whole,
        "memory_grown_mb": round(grown / 1e6),
        "goal": "at least 0.9, and the whole stream for a late reader",
        "holds": ratio >= 0.9 and is_whole,
    }


async def _unread(server: ServerProcess, seed: int) -> tuple[list[float], int, bool]:
    """Speeds beside a stream that is larger than the system's buffers; its bytes, and whether it has its end."""
    heavy = {"prompt": PROMPTS[3], "n": 8, "max_tokens": 700, "ignore_eos": True, "seed": seed, "logprobs": 20}
    loop = asyncio.get_running_loop()
    with await open_silent(server.url + COMPLETIONS, {**heavy, "draftproof": {"details": True}}) as held:
        while not (await asyncio.to_thread(server.get, "/stats"))["rows_in_use"]:
            await asyncio.sleep(0.02)
        if not await asyncio.to_thread(server.is_idle, 300):
            raise RuntimeError("texts that nobody reads have not ended")
        speeds = [await _speed(server, "alone", 48, seed + number) for number in range(5)]
        size, end = 0, b""
        while b"data: [DONE]" not in end and (part := await loop.sock_recv(held, 2**16)):
            size, end = size + len(part), (end + part)[-100:]
    return speeds, size, b"data: [DONE]" in end


def long_prompt(target: str, dtype: str, rounds: int, prompt: int, seed: int) -> dict[str, Any]:
    """Time between chunks of others, before a long prompt comes and while it is read."""
    rng = random.Random(seed)
    before, during, longest, waits = [], [], [], []
    options = ("--target", target, "--dtype", dtype, "--length", "6000", "--kept", "0")
    with serving(*options) as server:
        for number in range(rounds):
            text = _prose(server, prompt, rng)
            streams, sent, first = asyncio.run(_interrupted(server, text, seed + number))
            calm = [gap for one in streams for gap in _gaps(one, 0, sent)]
            busy = [gap for one in streams for gap in _gaps(one, sent, first)]
            before.append(median(calm))
            during.append(median(busy))
            longest.append(max(busy))
            waits.append(first - sent)
    ratio = median(b / a for a, b in zip(before, during, strict=True))
    return {
        "target": target,
        "dtype": dtype,
        "others": OTHERS,
        "prompt_tokens": prompt,
        "rounds": rounds,
        "first_token_of_long_prompt_s": round(median(waits), 2),
        "gap_before_s": round(median(before), 4),
        "gap_during_s": round(median(during), 4),
        "longest_gap_s": round(median(longest), 2),
        "ratio": round(ratio, 2),
        "goal": "at most 3",
        "holds": ratio <= 3,
    }


async def _interrupted(server: ServerProcess, text: str, seed: int) -> tuple[Sequence[Stream], float, float]:
    """Streams of others; when the long prompt was sent, and when its first token came."""
    url = server.url + COMPLETIONS
    written = server.get("/stats")["tokens"]
    async with _client() as client:
        leave = asyncio.Event()
        reading = [asyncio.ensure_future(read(client, url, body, leave=leave)) for body in _bodies(5000, seed)]
        while (await asyncio.to_thread(server.get, "/stats"))["tokens"] < written + OTHERS * CALM:
            await asyncio.sleep(0.02)
        sent = time.perf_counter()
        found = await read(client, url, {"prompt": text, "max_tokens": 2, "ignore_eos": True, "seed": seed})
        leave.set()
        streams = await asyncio.gather(*reading)
    return streams, sent, found.times[0]


def _gaps(stream: Stream, begin: float, end: float) -> list[float]:
    """Times between two chunks, wherever the second came after `begin` and the first before `end`."""
    return [b - a for a, b in zip(stream.times, stream.times[1:], strict=False) if b > begin and a < end]
