"""A server from its start to its end: loading, draining, signals, and what the command prints."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.support.serving import eventually, opened, serving

TEXT = {"prompt": "Hello", "max_tokens": 2}
ENDLESS = {"prompt": "Once upon a time", "ignore_eos": True, "stream": True}


def test_a_server_answers_while_it_loads_and_while_it_drains():
    go = threading.Event()

    def opens():
        go.wait(60)
        return opened(rows=1, length=8000)

    with serving(opens, rows=1, length=8000, grace=0.5, waits=False) as server:
        assert server.get("/health").json() == {"status": "loading"}
        early = server.post("/v1/completions", TEXT)
        assert (early.status_code, early.headers["retry-after"]) == (503, "1")
        assert early.json()["error"]["code"] == "loading"
        assert server.get("/stats").json()["status"] == "loading"
        assert server.get("/").status_code == 200
        go.set()
        eventually(lambda: server.get("/health").status_code == 200)
        with httpx.stream("POST", server.url + "/v1/completions", json=ENDLESS, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.handle_exit(signal.SIGTERM, None)
            server.process._is_told = False  # the fixture tells it again
            eventually(lambda: server.service.status == "draining")
            late = server.post("/v1/completions", TEXT)
            assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
            assert server.get("/health").json() == {"status": "draining"}
            assert finish(lines) == "abort"


def finish(lines) -> str:
    """Why a streamed text ended."""
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    return chunks[-1]["choices"][0]["finish_reason"]


# The command


@contextmanager
def command(*words: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command in a process of its own, and its address."""
    given = [sys.executable, "-m", "draftproof", "serve", "--target", "tiny", "--draft", "ngram", "--port", "0", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(given, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, **pipes) as process:
        try:
            line = process.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert found, line
            yield process, found[0]
        finally:
            process.kill()


def test_sigterm_lets_texts_finish():
    with command("--grace", "60", "--length", "8000", DRAFTPROOF_API_KEY="key") as (process, url):
        assert process.stdout.readline().startswith(f"curl {url}/v1/chat/completions ")
        with httpx.Client(base_url=url, headers={"Authorization": "Bearer key"}, timeout=60) as client:
            assert client.get("/health").json()["status"] in ("loading", "ready")
            eventually(lambda: client.get("/health").status_code == 200)
            body = {**ENDLESS, "max_tokens": 80}
            with client.stream("POST", "/v1/completions", json=body) as response:
                lines = response.iter_lines()
                next(lines)
                process.send_signal(signal.SIGTERM)
                assert finish(lines) == "length"
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


def test_a_second_signal_ends_it_at_once():
    with command("--grace", "600", "--length", "8000") as (process, url):
        eventually(lambda: httpx.get(url + "/health").status_code == 200)
        with httpx.stream("POST", url + "/v1/completions", json=ENDLESS, timeout=60) as response:
            lines = response.iter_lines()
            assert next(lines)
            process.send_signal(signal.SIGINT)
            eventually(lambda: httpx.get(url + "/health").json()["status"] == "draining")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 128 + signal.SIGINT


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--target", "./nothing-here"), "nothing-here"),
        (("--target", "tiny", "--draft", "head"), "train one for this target"),
        (("--rows", "0"), "--rows must be a whole number of at least 1, not 0"),
        (("--timeout", "nan"), "--timeout must be a number of seconds"),
        (("--api-key", " "), "the API key is empty"),
        (("--host", "256.0.0.1"), "256.0.0.1"),
        (("--port", "99999"), "99999"),
    ],
)
def test_what_cannot_be_served_is_one_line(draftproof, words, message):
    code, _, err = draftproof("serve", "--port", "0", *words)
    assert code == 2
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--target", "nope"),
        ("--target", "missing.gguf"),
        ("--target", "tiny", "--draft", "hed"),
        ("--target", "tiny", "--draft", "ngram|./nothing-here"),
        ("--target", "tiny", "--verify", "blok"),
        ("--target", "tiny", "--tree", "bush"),
        ("--target", "tiny", "--verify", "block", "--tree", "best:20x5"),
        ("--target", "tiny", "--dtype", "int4"),
    ],
)
def test_wrong_names_fail_before_the_server_tells_its_address(draftproof, words):
    code, out, err = draftproof("serve", "--port", "0", *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")


def test_an_open_address_without_a_key_is_noted(draftproof):
    _, out, err = draftproof("serve", "--host", "0.0.0.0", "--port", "0", "--target", "tiny", "--draft", "head")
    assert "note: " in err
    assert "without a key: give --api-key" in err
    assert out.startswith("draftproof serves tiny at http://0.0.0.0:")
