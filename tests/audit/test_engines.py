"""Engines under audit: ours, transformers' and a server; what they say is collected as it was sampled."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from draftproof.audit import Transcript, audit, collect, read, write
from draftproof.audit.rows import read as laws
from draftproof.draft import Tree
from draftproof.errors import DraftproofError
from draftproof.models.base import sessions
from draftproof.models.drafters.fallback import Fallback
from draftproof.models.drafters.head import HeadModel
from draftproof.models.drafters.ngram import NGram
from draftproof.models.drafters.recall import Recall
from draftproof.sampling import Anneal, Sampling, law
from tests.support import tiny
from tests.support.heads import network

PROMPTS = [(65, 66, 65, 66), (70, 71)]
COOL = Sampling(temperature=0.7, top_p=0.9)
TREES = {
    "token": Tree.chain(3),
    "block": Tree.chain(3),
    "gumbel": Tree.chain(2),
    "optimal": Tree.star(2),
    "nodeplan": Tree.star(2),
    "csbv": Tree.paths(2, 2),
}


@pytest.mark.parametrize("sampling", [Sampling(), COOL], ids=["T=1", "T=0.7"])
@pytest.mark.parametrize("name", TREES)
def test_our_engine_is_exact(name, sampling):
    target, draft = tiny.model(), tiny.model("llama", 1)
    settings = {"samples": 8, "max_new_tokens": 25, "seed": 1}
    made = list(collect.engine(target, PROMPTS, sampling, draft=draft, verify=name, tree=TREES[name], **settings))
    assert len(made) == 16
    assert 0.1 < np.mean([flag for text in made for flag in text.accepted]) < 0.9
    found = audit(made, target, draft=draft)
    assert found.exact, found.text()
    assert found.tokens == sum(len(text.output) for text in made)


def alone(head, text):
    """What a head says after a text, asked for in a session of its own."""
    target, (drafter,) = sessions(head.target, [head], 1, len(text) + 1)
    for one in (target, drafter.session):
        one.join(0, text)
    return law(drafter.session.extend(Tree.chain(0), np.array([[text[-1]]]), range(1))[0, 0], Sampling())


def test_the_guesses_of_a_head_and_of_a_mixture_are_those_of_the_engine():
    """Read from whole transcripts side by side; a mixture's are the n-gram's where it has one."""
    target = tiny.model()
    head = HeadModel(target, network())
    mixed = Fallback([NGram(tiny.VOCABULARY), head])
    texts = [
        Transcript((65, 66, 67, 65, 66), (67, 65, 70), Sampling()),
        Transcript((70,), (71, 72, 73, 74), Sampling()),
    ]
    for read_head, read_mixed in zip(laws(texts, target, head), laws(texts, target, mixed), strict=True):
        text = read_head.transcript
        for t in range(len(text.output)):
            expected = alone(head, (*text.prompt, *text.output[:t]))
            torch.testing.assert_close(read_head.draft[t], expected, atol=1e-5, rtol=0)
            if text.prompt[0] == 65:
                assert read_mixed.draft[t].argmax() == (67, 65, 66)[t]
                assert read_mixed.draft[t].max() == 1
            else:
                torch.testing.assert_close(read_mixed.draft[t], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["head", "ngram|head", "cache"])
def test_our_engine_is_exact_with_other_drafters(name):
    target = tiny.model()
    ngram, head, cache = NGram(tiny.VOCABULARY), HeadModel(target, network()), Recall(tiny.VOCABULARY)
    draft = {"head": head, "ngram|head": Fallback([ngram, head]), "cache": cache}[name]
    settings = {"samples": 8, "max_new_tokens": 25, "seed": 1, "rows": 5}
    made = list(collect.engine(target, PROMPTS, COOL, draft=draft, tree=Tree.chain(3), **settings))
    assert [text.prompt for text in made] == [prompt for prompt in PROMPTS for _ in range(8)]  # as they were asked for
    assert 0 < np.mean([flag for text in made for flag in text.accepted]) < 1
    if name == "cache":
        with pytest.raises(DraftproofError, match="depend on all text it had seen: audit without a draft"):
            audit(made, target, draft=draft)
    found = audit(made, target, draft=None if name == "cache" else draft)
    assert found.exact, found.text()


def test_an_audit_takes_the_settings_at_their_word():
    """The same texts, said to have come from other settings."""
    target = tiny.model()
    made = list(collect.engine(target, PROMPTS, Sampling(), samples=10, max_new_tokens=30, seed=2))
    assert audit(made, target).exact
    for wrong, words in (
        (Sampling(top_k=20), "tokens came that the settings forbid"),
        (Sampling(temperature=0.5), "temperature"),
    ):
        found = audit([text._replace(sampling=wrong) for text in made], target)
        assert not found.exact
        assert words in found.verdict


def test_the_size_of_a_batch_changes_next_to_nothing(monkeypatch):
    target, draft = tiny.model(), NGram(tiny.VOCABULARY)
    made = list(collect.engine(target, PROMPTS, COOL, samples=3, draft=draft, max_new_tokens=20, seed=3))
    whole = audit(made, target, draft=draft)
    monkeypatch.setattr("draftproof.audit.observe.ROOM", {"cpu": (1, 7 * tiny.VOCABULARY)})
    parts = audit(made, target, draft=draft)
    assert parts.final == pytest.approx(whole.final, abs=0.03)  # tables learn after other numbers of tokens
    assert parts.perplexity == pytest.approx(whole.perplexity)


@pytest.mark.parametrize("kind", ["plain", "assisted", "lookup"])
def test_transformers_generate(kind):
    target = tiny.model()
    how = {
        "plain": {"samples": 12},
        "assisted": {"samples": 2, "assistant": tiny.model("llama", 1)},
        "lookup": {"samples": 2, "lookup": 3},
    }[kind]
    made = list(collect.transformers(target, PROMPTS, COOL, max_new_tokens=16, seed=4, **how))
    assert [text.prompt for text in made] == [prompt for prompt in PROMPTS for _ in range(how["samples"])]
    assert all(text.sampling.top_p == 0.9 and text.sampling.end_tokens == (256,) for text in made)
    assert all(256 not in text.output[:-1] for text in made)
    assert max(len(text.output) for text in made) == 16
    found = audit(made, target)
    assert found.impossible == 0
    assert kind != "plain" or found.exact


def test_transformers_ends_a_text_where_it_is_said_to_end():
    endless = Sampling(end_tokens=())
    made = list(collect.transformers(tiny.model(), PROMPTS, endless, max_new_tokens=16, samples=40))
    assert {len(text.output) for text in made} == {16}
    assert any(256 in text.output for text in made)


@pytest.mark.parametrize("how", [{}, {"lookup": 3}], ids=["plain", "lookup"])
def test_transformers_greedy(how):
    target, greedy = tiny.model(), Sampling(temperature=0, top_p=0.9, repetition_penalty=1.1)
    made = list(collect.transformers(target, PROMPTS, greedy, max_new_tokens=8, samples=2, **how))
    ours = list(collect.engine(target, PROMPTS, greedy, max_new_tokens=8, samples=2))
    assert [text.output for text in made] == [text.output for text in ours]


def test_what_an_engine_cannot_do_is_an_error():
    target = tiny.model()
    for sampling in (Sampling(presence_penalty=0.1), Sampling(temperature=Anneal(1, 2, over=3))):
        with pytest.raises(DraftproofError, match=r"transformers' generate does not support .* leave it out"):
            next(collect.transformers(target, PROMPTS, sampling))
    with pytest.raises(DraftproofError, match=r"a completions endpoint does not support typical_p=0\.5"):
        next(collect.endpoint("http://127.0.0.1:1", "m", target, PROMPTS, Sampling(typical_p=0.5)))


# A server


class Completions(BaseHTTPRequestHandler):
    """OpenAI's completions of the tiny model; the server's `style` says how the ids are told."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers.get("Authorization"), asked))
        if self.server.style == "refuses":
            self.send_error(404, "no such model")
            return
        answer = b"nonsense"
        if self.server.style != "nonsense":
            answer = json.dumps({"choices": [self.choice(asked, k) for k in range(asked["n"])]}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer)

    def choice(self, asked, k: int):
        if self.server.style == "ends":
            return {"finish_reason": "stop", "token_ids": [1, 2, 3]}
        network = tiny.network("llama")  # made before the seed is set
        torch.manual_seed(k)
        ids = torch.tensor([asked["prompt"]])
        settings = {"temperature": asked["temperature"], "top_p": asked.get("top_p", 1.0), "top_k": 0}
        made = network.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, max_new_tokens=asked["max_tokens"], **settings
        )[0, ids.shape[1] :].tolist()
        ended = made[-1] == 256
        made = made[:-1] if ended else made  # servers leave the end token out
        said = {"finish_reason": "stop" if ended else "length", "text": tiny.tokenizer().decode(made)}
        match self.server.style:
            case "ids":
                said["token_ids"] = made
            case "names":
                said["logprobs"] = {"tokens": [f"token_id:{token}" for token in made]}
            case "entries":
                said["logprobs"] = {"content": [{"id": token, "token": "?"} for token in made]}
            case "tokens":
                said["logprobs"] = {"tokens": tiny.tokenizer().convert_ids_to_tokens(made)}
        return said

    def log_message(self, *args) -> None:
        """Tests are quiet."""


@pytest.fixture
def server():
    served = HTTPServer(("127.0.0.1", 0), Completions)
    served.asked = []
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield served
    served.shutdown()
    served.server_close()


def ask(server, style, **settings):
    server.style = style
    url = f"http://127.0.0.1:{server.server_port}/v1"
    return list(collect.endpoint(url, "tiny", tiny.model(), PROMPTS, COOL, samples=2, max_new_tokens=12, **settings))


def test_ids_from_a_server_in_every_way_they_are_told(server):
    told = {style: ask(server, style, key="secret") for style in ("ids", "names", "entries", "tokens")}
    assert told["ids"] == told["names"] == told["entries"] == told["tokens"]
    assert len(told["ids"]) == 4
    assert not any(text.retokenised for text in told["ids"])
    path, key, asked = server.asked[0]
    assert (path, key) == ("/v1/completions", "Bearer secret")
    assert (asked["prompt"], asked["temperature"], asked["top_p"], asked["n"]) == (list(PROMPTS[0]), 0.7, 0.9, 2)
    assert (asked["top_k"], asked["min_p"], asked["repetition_penalty"]) == (
        tiny.VOCABULARY,
        0.0,
        1.0,
    )  # said to be off
    assert audit(told["ids"], tiny.model()).exact


def test_ids_made_from_text_are_marked_and_reported(server, tmp_path):
    write(tmp_path / "t.jsonl", ask(server, "text"))
    again = list(read(tmp_path / "t.jsonl", tiny.model()))
    assert all(text.retokenised for text in again)
    assert "4 outputs were tokenised again from their text" in audit(again, tiny.model()).text()


def test_an_end_that_the_server_leaves_out_is_put_back(server):
    assert {text.output for text in ask(server, "ends")} == {(1, 2, 3, 256)}


@pytest.mark.parametrize(
    ("style", "message"), [("refuses", "answered 404"), ("nonsense", "no completions from .* check the address")]
)
def test_a_server_that_fails_is_one_line(server, style, message):
    with pytest.raises(DraftproofError, match=message) as error:
        ask(server, style)
    assert "\n" not in str(error.value)


def test_vllm_where_it_is_installed_and_where_not(monkeypatch):
    with pytest.raises(DraftproofError, match="vllm is not installed here"):
        next(collect.vllm("m", tiny.model(), PROMPTS, COOL))
    made = {}

    class LLM:
        def __init__(self, model, **settings):
            made.update(settings, model=model)

        def generate(self, prompts, params):
            made.update(params=params)
            return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[1, 2, 256])]) for _ in prompts]

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=LLM, SamplingParams=lambda **s: s))
    texts = list(
        collect.vllm(
            "m", tiny.model(), PROMPTS, COOL, seed=5, engine_settings={"speculative_config": {"method": "ngram"}}
        )
    )
    assert [text.output for text in texts] == [(1, 2, 256)] * 2
    assert made["speculative_config"] == {"method": "ngram"}
    assert made["params"] == {"n": 1, "max_tokens": 128, "temperature": 0.7, "top_p": 0.9}
