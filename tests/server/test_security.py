"""Keys, origins and headers; and that no error, log or metric holds what a client wrote."""

from __future__ import annotations

import logging

import httpx
import openai
import pytest

from draftproof import AsyncEngine
from draftproof.models.table import TableModel
from tests.support import tiny
from tests.support.serving import serving

KEY = "s3cret-\u00e4"
TEXT = {"prompt": "Hello", "max_tokens": 2}
SECRET = "confidential"


@pytest.fixture(scope="module")
def locked():
    with serving(key=KEY, origins=("https://example.org",)) as running:
        yield running


def bearer(key):
    return {"Authorization": f"Bearer {key}".encode()}


@pytest.mark.parametrize("headers", [{}, bearer("s3cret"), bearer("x"), {"Authorization": f"Basic {KEY}".encode()}])
def test_without_the_key_there_is_no_answer(locked, headers):
    answers = [locked.get(path, headers=headers) for path in ("/v1/models", "/metrics", "/stats", "/openapi.json")]
    for answer in (*answers, locked.post("/v1/completions", TEXT, headers=headers)):
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"


def test_with_the_key_there_is(locked):
    assert locked.post("/v1/completions", TEXT, headers=bearer(KEY)).status_code == 200
    with pytest.raises(openai.AuthenticationError), locked.openai() as client:
        client.models.list()
    for public in ("/health", "/", "/index.html"):
        assert locked.get(public).status_code == 200


def test_pages_of_other_sites_may_use_it_only_if_they_are_named(locked):
    for origin, allowed in (("https://example.org", True), ("https://example.com", False)):
        ask = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        preflight = httpx.options(locked.url + "/v1/completions", headers=ask)
        answer = locked.post("/v1/completions", TEXT, headers={"Origin": origin, **bearer(KEY)})
        for found in (preflight, answer):
            assert (found.headers.get("access-control-allow-origin") == origin) == allowed


@pytest.mark.parametrize("path", ["/", "/health", "/nowhere", "/v1/models"])
def test_every_answer_has_security_headers(locked, path):
    headers = locked.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


# A model that breaks


def breaks_at_x() -> AsyncEngine:
    def law(context):
        if context and context[0] == tiny.tokenizer().encode("X")[0]:
            raise RuntimeError(f"cannot read {SECRET} {context}")
        return [1 / tiny.VOCABULARY] * tiny.VOCABULARY

    model = TableModel(law)
    model.tokenizer = tiny.tokenizer()
    return AsyncEngine(model, draft=None, rows=2, length=64)


@pytest.fixture(scope="module")
def broken():
    with serving(lambda: (breaks_at_x(), "none"), rows=2, length=64) as running:
        yield running


def test_an_internal_error_is_an_id_and_others_go_on(broken, caplog):
    with caplog.at_level(logging.DEBUG):
        answer = broken.post("/v1/completions", {"prompt": "Xconfidential", "max_tokens": 5})
        assert broken.post("/v1/completions", TEXT).status_code == 200
    assert answer.status_code == 500
    message = answer.json()["error"]["message"]
    assert message.startswith("internal error ")
    logged = [record.getMessage() for record in caplog.records]
    assert any(message in line and "RuntimeError" in line for line in logged)
    assert SECRET not in "".join(logged) + broken.get("/metrics").text


def test_a_stream_ends_with_the_error(broken):
    with broken.openai() as client, pytest.raises(openai.APIError, match="internal error"):
        list(client.completions.create(model="tiny", prompt="Xconfidential", max_tokens=5, stream=True))
