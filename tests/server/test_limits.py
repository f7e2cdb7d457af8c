"""Who waits, who is turned away, who is cancelled: clients that leave, never read, or come too late."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import ExitStack

import httpx
import openai
import pytest

from draftproof.server.errors import ApiError
from draftproof.server.limits import WaitingLine
from tests.support.serving import eventually, serving

ENDLESS = {"prompt": "Once upon a time", "ignore_eos": True, "seed": 1}
SHORT = {"prompt": "The sea", "max_tokens": 3, "seed": 1}
LONG = 8000  # tokens: half a minute


@pytest.fixture(scope="module")
def server():
    with serving(length=LONG, rows=2, queue=1) as running:
        yield running


def events(lines):
    for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


# The queue


def test_rows_are_given_in_order_of_arrival():
    line = WaitingLine(rows=3, places=2)
    [a], [b], [c] = line.enter(1, 2), line.enter(1, 2), line.enter(1, 1)
    assert (line.rows_in_use, line.waiting) == (2, 2)  # c would fit, but b came first
    with pytest.raises(ApiError, match=r"queue is full \(2 of 2"):
        line.enter(1, 1)
    a.end()
    assert (line.rows_in_use, line.waiting) == (3, 1)  # one text of a, two of b
    c.leave()
    a.leave()
    b.leave()
    b.leave()
    assert (line.rows_in_use, line.waiting) == (0, 0)
    assert len(line.enter(5, 1)) == 5  # three start, two wait
    with pytest.raises(ApiError):
        line.enter(1, 1)


def test_a_full_queue_answers_429_and_the_next_in_line_starts(server):
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=server.url, timeout=60))
        running = [
            stack.enter_context(client.stream("POST", "/v1/completions", json={**ENDLESS, "stream": True}))
            for _ in range(2)
        ]
        readers = [events(one.iter_lines()) for one in running]  # one that is dropped closes its stream
        assert all(next(reader) for reader in readers)
        waiting = threading.Thread(target=lambda: answers.append(server.post("/v1/completions", SHORT)))
        answers: list[httpx.Response] = []
        waiting.start()
        eventually(lambda: server.service.line.waiting == 1)
        with server.openai() as impatient, pytest.raises(openai.RateLimitError) as refused:
            impatient.completions.create(model="tiny", **SHORT)
        assert refused.value.response.headers["Retry-After"] == "1"
        assert not answers
        running[0].close()
        waiting.join(60)
        assert answers[0].status_code == 200
    server.idle()


# Clients that leave


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_is_cancelled(server, stream):
    before = server.service.recent.tokens
    if stream:
        with httpx.stream("POST", server.url + "/v1/completions", json={**ENDLESS, "stream": True}) as response:
            next(events(response.iter_lines()))
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(server.url + "/v1/completions", json=ENDLESS, timeout=0.5)
    server.idle()
    assert 0 < server.service.recent.tokens - before < LONG / 2


def test_the_client_library_cancels_by_closing_and_by_timeout(server):
    with server.openai() as client:
        with client.completions.create(
            model="tiny", stream=True, extra_body={"ignore_eos": True}, prompt="a"
        ) as chunks:
            next(iter(chunks))
        server.idle()
        with pytest.raises(openai.APITimeoutError):
            client.completions.create(model="tiny", prompt="a", extra_body={"ignore_eos": True}, timeout=0.3)
        server.idle()


def test_a_client_that_never_reads_slows_nobody(server):
    body = json.dumps({**ENDLESS, "stream": True, "draftproof": {"details": True}}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        deaf.connect(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
        deaf.sendall((head % len(body)).encode() + body)
        eventually(lambda: server.service.line.rows_in_use == 1)
        assert server.post("/v1/completions", SHORT).status_code == 200
        assert server.service.line.rows_in_use == 1  # the other still writes
        assert server.get("/health").status_code == 200
    server.idle()


# Time


def test_a_text_that_takes_too_long_is_ended():
    with serving(length=LONG, rows=1, timeout=1.0) as server:
        answers = {}

        def ask(name):
            answers[name] = server.post("/v1/completions", ENDLESS)

        first = threading.Thread(target=ask, args=("first",))
        first.start()
        eventually(lambda: server.service.line.rows_in_use == 1)
        ask("second")  # has waited for a row all the time, or most of it
        first.join(60)
        choice = answers["first"].json()["choices"][0]
        assert (choice["finish_reason"], bool(choice["text"])) == ("abort", True)
        if answers["second"].status_code == 200:
            assert answers["second"].json()["choices"][0]["finish_reason"] == "abort"
        else:
            assert answers["second"].status_code == 503
            assert answers["second"].json()["error"]["code"] == "timeout"
        server.idle()
