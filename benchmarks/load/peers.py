"""Our server beside `vllm serve`: the same model, machine and prompts, in turns, with clients that read streams."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx

from benchmarks.load.clients import TIMEOUT, read
from benchmarks.load.process import STOP, serving
from benchmarks.load.storm import CHAT
from draftproof.models.files import packed
from draftproof.models.files.download import smollm2
from draftproof.prompts import PROMPTS

NAME = "smollm2"
LENGTH = 512  # of prompt and text
ASKED = 2  # requests of each client, one after the other
START = 1800.0  # seconds in which vLLM must be ready; it compiles the model first
OURS = {"float32": "float32", "bfloat16": "int8"}  # by vLLM's precision: the same one, and each one's fastest
PLAIN = {"draftproof": {"speculate": False}}  # in the body: without drafting, as vLLM


class Turn(NamedTuple):
    """What the clients of one turn have seen."""

    tokens_per_s: float
    tokens_per_cpu_s: float  # by the time of all cores together, which depends less on who else uses them
    first_token_s: float  # the median over all requests


class Server(NamedTuple):
    """Where to ask, how, and whose time counts."""

    url: str
    process: int
    body: dict[str, Any]


def beside_vllm(
    python: Path, dtype: str, threads: int, clients: int, tokens: int, rounds: int, seed: int
) -> dict[str, Any]:
    """Tokens a second and time to first token of vLLM in this precision, and of ours in all of them.

    python     that of an environment with vLLM
    threads    of each server; with one, barriers between threads do not decide on a machine that others use too
    """
    theirs = f"vllm {dtype}"
    turns: dict[str, list[Turn]] = {}
    with ExitStack() as stack:
        servers = {theirs: stack.enter_context(_vllm(python, dtype, threads, clients))}
        for own in OURS.values():
            options = ("--target", NAME, "--dtype", own, "--rows", str(clients), "--length", str(LENGTH))
            server = stack.enter_context(serving(*options, "--threads", str(threads), "--timeout", "3600"))
            for name, how in ((f"draftproof {own}", {}), (f"draftproof {own} plain", PLAIN)):
                servers[name] = Server(server.url, server.process.pid, how)
        for number in range(rounds + 1):
            for name, one in servers.items():
                seen = asyncio.run(turn(one, clients, tokens, seed + number))
                print(name, seen, flush=True)
                if number:  # the first round warms up
                    turns.setdefault(name, []).append(seen)
    against = {name: ratios(own, turns[theirs]) for name, own in turns.items() if name != theirs}
    judged = against[f"draftproof {OURS[dtype]}"]
    return {
        "target": NAME,
        "threads": threads,
        "clients": clients,
        "requests": clients * ASKED,
        "tokens": tokens,
        "rounds": rounds,
        "vllm": _version(python),
        **{
            field: {name: round(median(getattr(one, field) for one in own), 3) for name, own in turns.items()}
            for field in Turn._fields
        },
        "ratios": against,
        "goal": f"{OURS[dtype]}: at least 2 in tokens_per_s and at most 1 in first_token_s",
        "holds": judged["tokens_per_s"] >= 2 and judged["first_token_s"] <= 1,
    }


def ratios(ours: Sequence[Turn], theirs: Sequence[Turn]) -> dict[str, float]:
    """Medians of the ratios within a round, so that what slows a round cancels."""
    pairs = list(zip(ours, theirs, strict=True))
    return {
        name: round(median(getattr(our, name) / getattr(their, name) for our, their in pairs), 3)
        for name in Turn._fields
    }


def table(root: Path) -> str:
    """Both recorded runs beside vLLM, for docs/server.md."""
    recorded = json.loads((root / "benchmarks/results/server.json").read_text(encoding="utf-8"))
    runs = [recorded[f"beside vLLM in {dtype}"] for dtype in OURS]
    heads = [f"{what}vLLM in {dtype}" for dtype in OURS for what in ("tokens/s, ", "times vLLM's, ", "first token, ")]
    lines = [["server", *heads], ["---", *["---:"] * len(heads)]]
    ours = [f"draftproof {dtype}{how}" for dtype in OURS.values() for how in ("", " plain")]
    for name in ("vllm", *ours):
        cells = [name if name in ours else f"vLLM {runs[0]['vllm']}"]
        for dtype, run in zip(OURS, runs, strict=True):
            key = name if name in ours else f"vllm {dtype}"
            ratio = f"{run['ratios'][key]['tokens_per_s']:.2f}" if key in run["ratios"] else "1"
            cells += [f"{run['tokens_per_s'][key]:.0f}", ratio, f"{run['first_token_s'][key]:.2f} s"]
        lines.append(cells)
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    last = runs[-1]
    where = f"{last['machine']['cpu']}, {last['machine']['cores']} cores; commit {last['commit']}, {last['date']}"
    asked = f"{last['clients']} clients, {ASKED} requests of {last['tokens']} tokens each, temperature 1"
    return f"{text}\n{asked}; {last['threads']} threads for each server; medians of {last['rounds']} rounds; {where}.\n"


# One turn


async def turn(server: Server, clients: int, tokens: int, seed: int) -> Turn:
    async with httpx.AsyncClient(timeout=TIMEOUT, limits=httpx.Limits(max_connections=clients)) as client:
        begun, busy = time.perf_counter(), _cpu_seconds(server.process)
        asked = (_asks(client, server, tokens, 1000 * seed + i) for i in range(clients))
        found = [one for own in await asyncio.gather(*asked) for one in own]
        spent, busy = time.perf_counter() - begun, _cpu_seconds(server.process) - busy
    count = sum(count for count, _ in found)
    return Turn(count / spent, count / busy, median(first for _, first in found))


def _cpu_seconds(process: int) -> float:
    """Time that a process and its descendants have used, of all cores together."""
    parents, ticks = {}, {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            fields = file.read_text().rpartition(")")[2].split()
            pid = int(file.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    family = {process}
    while new := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= new
    return sum(ticks.get(pid, 0) for pid in family) / os.sysconf("SC_CLK_TCK")


async def _asks(client: httpx.AsyncClient, server: Server, tokens: int, number: int) -> list[tuple[int, float]]:
    """Tokens and time to first token of each request of one client."""
    found = []
    for i in range(ASKED):
        # no two questions begin alike: what a server keeps of earlier texts must not decide this
        question = f"Question {number + 100 * i}. {PROMPTS[(number + i) % len(PROMPTS)]}"
        body = {
            "model": NAME,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": tokens,
            "temperature": 1.0,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
            **server.body,
        }
        begun = time.perf_counter()
        stream = await read(client, server.url + CHAT, body)
        if stream.error is not None or stream.tokens != tokens:
            raise RuntimeError(f"{server.url} has written {stream.tokens} of {tokens} tokens: {stream.error}")
        found.append((stream.tokens, stream.times[0] - begun))
    return found


# vLLM


@contextmanager
def _vllm(python: Path, dtype: str, threads: int, rows: int) -> Iterator[Server]:
    """A `vllm serve` for the time of a block.

    Its own settings, but for as many threads as we have (by default it leaves one core free, which is half of two), and
    1 GiB for the KV cache, which is many times what the clients use.
    """
    port = _free_port()
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port), "--dtype", dtype]
    command += ["--max-num-seqs", str(rows), "--max-model-len", str(LENGTH), "--disable-uvicorn-access-log"]
    own = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    elsewhere = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        packed.write_out(smollm2(), Path(folder))
        process = subprocess.Popen(
            [*command, "--model", folder], stdout=log, stderr=log, env={**elsewhere, **own}, start_new_session=True
        )  # its workers are in the same session, and end with it
        try:
            url = f"http://127.0.0.1:{port}"
            if not _is_ready(url, process):
                log.seek(0)
                last = log.read().decode(errors="replace").strip().splitlines()[-20:]
                raise RuntimeError("vLLM has not started:\n" + "\n".join(last))
            yield Server(url, process.pid, {})
        finally:
            process.terminate()
            try:
                process.wait(STOP)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # its workers are in the same group


def _is_ready(url: str, process: subprocess.Popen[bytes]) -> bool:
    until = time.monotonic() + START
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=10).close()
            return True
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
    return False


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _version(python: Path) -> str:
    ask = "from importlib.metadata import distributions as d; print(*{x.version for x in d() if x.name[:4] == 'vllm'})"
    return subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
