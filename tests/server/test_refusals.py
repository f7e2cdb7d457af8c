"""What is refused, and that every refusal is OpenAI's error object naming the parameter."""

from __future__ import annotations

import openai
import pytest

from tests.support.serving import serving


@pytest.fixture(scope="module")
def server():
    with serving(length=64, body=20_000) as running:
        yield running


TEXT = {"prompt": "Hello", "max_tokens": 2}
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
REFUSED = [
    ("completions", {"unheard_of": 1}, "unheard_of"),
    ("completions", {"max_token": 1}, "max_token"),
    ("completions", {"suffix": "x"}, "suffix"),
    ("completions", {"best_of": 3}, "best_of"),
    ("completions", {"n": 5}, "n"),
    ("completions", {"n": 0}, "n"),
    ("completions", {"max_tokens": 0}, "max_tokens"),
    ("completions", {"max_tokens": 1000}, "max_tokens"),
    ("completions", {"prompt": "word " * 100}, "prompt"),
    ("completions", {"prompt": []}, "prompt"),
    ("completions", {"prompt": ""}, "prompt"),
    ("completions", {"prompt": [10**6]}, "prompt"),
    ("completions", {"prompt": [[1], ["a"]]}, "prompt"),
    ("completions", {"temperature": "hot"}, "temperature"),
    ("completions", {"temperature": -1}, "temperature"),
    ("completions", {"top_p": 0}, "top_p"),
    ("completions", {"min_tokens": -1}, "min_tokens"),
    ("completions", {"logit_bias": {"Hello": 1.0}}, "logit_bias"),
    ("completions", {"logit_bias": {"1000000": 1.0}}, "logit_bias"),
    ("completions", {"stop": [""]}, "stop"),
    ("completions", {"stop": 5}, "stop"),
    ("completions", {"stop": ["a"] * 17}, "stop"),
    ("completions", {"logit_bias": {str(i): 1.0 for i in range(1025)}}, "logit_bias"),
    ("completions", {"prediction": {"type": "content", "content": "word " * 100}}, "prediction"),
    ("completions", {"stop_token_ids": [10**6]}, "stop_token_ids"),
    ("completions", {"seed": -1}, "seed"),
    ("completions", {"logprobs": 99}, "logprobs"),
    ("completions", {"logprobs": 1, "echo": True}, "echo"),
    ("completions", {"stream_options": {"include_usage": True}}, "stream_options"),
    ("completions", {"skip_special_tokens": False}, "skip_special_tokens"),
    ("completions", {"samplers": ["top_k", "temperature"]}, "samplers"),
    ("completions", {"store": True}, "store"),
    ("completions", {"draftproof": {"draft": "/etc"}}, "draftproof.draft"),
    ("completions", {"draftproof": {"draft": "ngram|org/model"}}, "draftproof.draft"),
    ("completions", {"draftproof": {"draft": "head"}}, "draftproof"),
    ("completions", {"draftproof": {"verify": "blok"}}, "draftproof.verify"),
    ("completions", {"draftproof": {"tree": "paths:60x60"}}, "draftproof.tree"),
    ("completions", {"draftproof": {"tree": "oak"}}, "draftproof.tree"),
    ("completions", {"draftproof": {"colour": 1}}, "draftproof.colour"),
    ("chat/completions", {"messages": []}, "messages"),
    ("chat/completions", {"messages": [{"role": "wizard", "content": "a"}]}, "messages"),
    ("chat/completions", {"messages": [{"content": "a"}]}, "messages[0].role"),
    ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
    ("chat/completions", {"tools": [{"type": "function"}]}, "tools"),
    ("chat/completions", {"tool_choice": "required"}, "tool_choice"),
    ("chat/completions", {"response_format": {"type": "xml"}}, "response_format.type"),
    ("chat/completions", {"top_logprobs": 2}, "top_logprobs"),
    ("chat/completions", {"max_completion_tokens": 3}, "max_tokens"),
    ("chat/completions", {"continue_final_message": True}, "continue_final_message"),
    ("chat/completions", {"prediction": {"type": "text", "content": "a"}}, "prediction.type"),
    ("chat/completions", {"modalities": ["text", "audio"]}, "modalities[1]"),
]


@pytest.mark.parametrize(
    ("path", "given", "param"), REFUSED, ids=[f"{p}-{list(g)[-1]}-{i}" for i, (p, g, _) in enumerate(REFUSED)]
)
def test_a_wrong_parameter_is_named(server, path, given, param):
    answer = server.post(f"/v1/{path}", {**(TEXT if path == "completions" else CHAT), **given})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert error["message"]
    assert "\n" not in error["message"]


def test_what_asks_for_nothing_is_accepted(server):
    nothing = {"user": "me", "metadata": {"a": "b"}, "store": False, "tools": [], "tool_choice": "none", "n": None}
    assert server.post("/v1/chat/completions", {**CHAT, **nothing}).status_code == 200


def test_the_client_knows_the_errors(server):
    with server.openai() as client:
        with pytest.raises(openai.NotFoundError, match="'gpt-5' is not served here: use 'tiny'"):
            client.completions.create(model="gpt-5", prompt="a")
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model="tiny", prompt="word " * 100)
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "prompt")
        with pytest.raises(openai.BadRequestError, match="top_p"):  # before the first event
            client.completions.create(model="tiny", prompt="a", top_p=2, stream=True)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("POST", "/v1/nowhere", 404), ("GET", "/v1/completions", 405), ("DELETE", "/", 405),
     ("GET", "/../app.py", 404), ("GET", "/v1/models/other", 404)],
)  # fmt: skip
def test_unknown_paths_and_methods_are_error_objects(server, method, path, status):
    import httpx

    answer = httpx.request(method, server.url + path)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [(b"{", "application/json", 400), (b"[]", "application/json", 400), (b'{"prompt": "a"}', "text/plain", 400),
     (b"[" * 10_000, "application/json", 400), (b'{"prompt": "a", "top_p": NaN}', "application/json", 400),
     (b" " * 30_000, "application/json", 413)],
)  # fmt: skip
def test_bodies_that_are_no_requests(server, body, kind, status):
    import httpx

    answer = httpx.post(server.url + "/v1/completions", content=body, headers={"Content-Type": kind})
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_a_large_body_without_a_length(server):
    import httpx

    answer = httpx.post(server.url + "/v1/completions", content=iter([b" " * 15_000] * 2))
    assert answer.status_code == 413


def test_no_messages_have_no_tokens(server):
    answer = server.post("/tokenize", {"messages": [], "continue_final_message": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
