"""A storm: many clients at once, of whom some go away, some never read, and some send what no server can serve."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import httpx

from benchmarks.load.clients import TIMEOUT, error_of, open_silent, read, send_raw, text_of
from draftproof.prompts import PROMPTS

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SHARES = {"cancelled": 0.10, "malformed": 0.05, "silent": 0.05, "witness": 0.05}  # the rest are plain requests
WITNESS = {"prompt": PROMPTS[2], "max_tokens": 12, "seed": 7}  # always the same text, whoever else is there
BODY = 65536  # most bytes of a body that the server of a storm takes
MALFORMED: dict[str, tuple[str, bytes]] = {
    "no JSON": (COMPLETIONS, b"{'prompt': 'a'}"),
    "no UTF-8": (COMPLETIONS, b'{"prompt": "\xff\xfe"}'),
    "no object": (CHAT, b'["a"]'),
    "empty": (CHAT, b""),
    "no prompt": (COMPLETIONS, b'{"max_tokens": 4}'),
    "no messages": (CHAT, b'{"messages": []}'),
    "unknown parameter": (COMPLETIONS, b'{"prompt": "a", "temprature": 1}'),
    "wrong type": (COMPLETIONS, b'{"prompt": "a", "max_tokens": "four"}'),
    "negative temperature": (CHAT, b'{"messages": [{"role": "user", "content": "a"}], "temperature": -1}'),
    "NaN": (COMPLETIONS, b'{"prompt": "a", "temperature": NaN}'),
    "too long": (COMPLETIONS, b'{"prompt": "a", "max_tokens": 1000000}'),
    "too many samples": (COMPLETIONS, b'{"prompt": "a", "n": 1000}'),
    "strange token": (COMPLETIONS, b'{"prompt": [1, 99999999]}'),
    "unknown model": (COMPLETIONS, b'{"prompt": "a", "model": "another"}'),
    "unknown rule": (COMPLETIONS, b'{"prompt": "a", "draftproof": {"verify": "another"}}'),
    "large body": (COMPLETIONS, b'{"prompt": "' + b"a" * BODY + b'"}'),
    "deep": (COMPLETIONS, b'{"prompt": ' + b"[" * 9999 + b"]" * 9999 + b"}"),
    "unknown path": ("/v1/embeddings", b'{"input": "a"}'),
    "cut off": (COMPLETIONS, b'{"prompt": "a"'),  # ends before its length says, and the client is gone
}


class Planned(NamedTuple):
    """What one client does."""

    kind: str  # "plain", "cancelled", "malformed", "silent" or "witness"
    path: str
    body: dict[str, Any]
    streams: bool = True
    chunks: int = 0  # after which a cancelled one goes away
    fault: str = ""  # of MALFORMED


class Ending(NamedTuple):
    """How a request ended for its client."""

    kind: str
    end: str  # "finished", "error", "refused", "full", "left", "unread", or "broken"
    detail: str = ""
    text: str = ""


def plan(count: int, seed: int) -> list[Planned]:
    """This many requests, in a random order, with exact shares of each kind."""
    rng = random.Random(seed)
    kinds = [kind for kind, share in SHARES.items() for _ in range(round(count * share))]
    kinds += ["plain"] * (count - len(kinds))
    rng.shuffle(kinds)
    faults = list(MALFORMED)
    numbers = {"malformed": 0}
    found = []
    for kind in kinds:
        if kind == "malformed":
            fault = faults[numbers[kind] % len(faults)]
            numbers[kind] += 1
            found.append(Planned(kind, MALFORMED[fault][0], {}, fault=fault))
        elif kind == "witness":
            found.append(Planned(kind, COMPLETIONS, WITNESS, streams=rng.random() < 0.5))
        else:
            path, body = _request(rng)
            streams = kind != "plain" or rng.random() < 0.6
            found.append(Planned(kind, path, body, streams, chunks=rng.randint(1, 6)))
    return found


def _request(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A valid request with settings as clients mix them."""
    text = rng.choice(PROMPTS)[: rng.randint(8, 60)]
    body: dict[str, Any] = {"max_tokens": rng.randint(2, 16), "n": rng.choice((1, 1, 1, 1, 2))}
    extras: tuple[dict[str, Any], ...] = (
        {},
        {"temperature": 0.7, "top_p": 0.9},
        {"seed": rng.randrange(2**31)},
        {"frequency_penalty": 0.5, "stop": ["the"]},
        {"prediction": {"type": "content", "content": text}},
        {"draftproof": {"speculate": False}},
        {"draftproof": {"draft": "cache", "details": True}},
        {"temperature": 0},
    )
    body |= rng.choice(extras)
    if rng.random() < 0.5:
        return CHAT, {**body, "messages": [{"role": "user", "content": text}]}
    return COMPLETIONS, {**body, "prompt": text}


async def storm(url: str, requests: Iterable[Planned], clients: int) -> list[Ending]:
    """Let clients send these requests, each one after the other; who never reads holds its connection to the end."""
    waiting, endings = iter(requests), []
    held: list[socket.socket] = []
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx.AsyncClient(limits=limits, timeout=TIMEOUT) as client:

        async def works() -> None:
            for request in waiting:  # shared: whoever is free takes the next
                endings.append(await _send(client, url, request, held))

        try:
            await asyncio.gather(*(works() for _ in range(clients)))
        finally:
            for connection in held:
                connection.close()
    return endings


async def _send(client: httpx.AsyncClient, url: str, request: Planned, held: list[socket.socket]) -> Ending:
    kind = request.kind
    try:
        if kind == "silent":
            held.append(await open_silent(url + request.path, request.body))
            return Ending(kind, "unread")
        if kind == "malformed":
            return await _malformed(client, url, request)
        return await (_streamed if request.streams else _whole)(client, url, request)
    except (httpx.HTTPError, OSError, ValueError) as error:
        return Ending(kind, "broken", f"{request.fault} {type(error).__name__}: {error}".strip())


async def _streamed(client: httpx.AsyncClient, url: str, request: Planned) -> Ending:
    kind = request.kind
    found = await read(client, url + request.path, request.body, request.chunks if kind == "cancelled" else None)
    if found.status != 200:
        return _refused(kind, found.status, found.error)
    if found.error is not None:
        return Ending(kind, "error", str(found.error))
    if found.is_done and found.finishes == request.body.get("n", 1):
        return Ending(kind, "finished", text=found.text)
    if kind == "cancelled" and len(found.arrivals) >= request.chunks:
        return Ending(kind, "left")
    return Ending(kind, "broken", "the stream has no end")


async def _whole(client: httpx.AsyncClient, url: str, request: Planned) -> Ending:
    answer = await client.post(url + request.path, json=request.body)
    if answer.status_code != 200:
        return _refused(request.kind, answer.status_code, error_of(answer.content))
    choices = answer.json()["choices"]
    if len(choices) != request.body.get("n", 1) or not all(choice["finish_reason"] for choice in choices):
        return Ending(request.kind, "broken", "the answer has no end")
    return Ending(request.kind, "finished", text="".join(map(text_of, choices)))


async def _malformed(client: httpx.AsyncClient, url: str, request: Planned) -> Ending:
    path, content = MALFORMED[request.fault]
    if request.fault == "cut off":
        (await send_raw(url + path, content, len(content) + 100)).close()
        return Ending(request.kind, "left")
    answer = await client.post(url + path, content=content, headers={"Content-Type": "application/json"})
    ending = _refused(request.kind, answer.status_code, error_of(answer.content))
    is_right = ending.end == "refused"
    return ending if is_right else ending._replace(end="broken", detail=f"{request.fault}: {ending.detail}")


def _refused(kind: str, status: int, error: dict[str, Any] | None) -> Ending:
    detail = f"{status} {'' if error is None else error['message']}"[:200]
    if error is None or status < 400 or (status >= 500 and error["code"] == "internal_error"):
        return Ending(kind, "broken", detail)
    if status == 429:
        return Ending(kind, "full", detail)
    return Ending(kind, "refused" if status < 500 else "error", detail)


def summary(endings: Iterable[Ending]) -> dict[str, dict[str, int]]:
    """How many requests of each kind ended in which way."""
    counts = Counter((ending.kind, ending.end) for ending in endings)
    kinds = sorted({kind for kind, _ in counts})
    return {kind: {end: count for (its, end), count in sorted(counts.items()) if its == kind} for kind in kinds}


def faults(endings: Iterable[Ending], planned: int, witness: str) -> list[str]:
    """What should not have happened: an end that is none, a valid request refused, another text under the same seed."""
    endings = list(endings)
    found = [f"{ending.kind}: {ending.end} {ending.detail}" for ending in endings if ending.end in ("broken", "error")]
    found += [f"{e.kind}: refused {e.detail}" for e in endings if e.end == "refused" and e.kind != "malformed"]
    found += [
        f"another text under the same seed: {ending.text!r}"
        for ending in endings
        if (ending.kind, ending.end) == ("witness", "finished") and ending.text != witness
    ]
    return found + ([f"{planned - len(endings)} requests without an end"] if planned != len(endings) else [])
