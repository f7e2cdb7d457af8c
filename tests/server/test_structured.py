"""Texts of a form that the client asks for, by OpenAI's names and by vLLM's, seen by the openai client."""

from __future__ import annotations

import json
import re
from typing import Literal

import openai
import pytest
from pydantic import BaseModel, Field

from draftproof import Grammar, Sampling, generate
from tests.support.serving import DRAFT, tiny

CHAT = [{"role": "user", "content": "Once upon a time"}]
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "count": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}


class Animal(BaseModel):
    kind: Literal["cat", "dog"]
    legs: int = Field(ge=0, le=8)


def chat(client, **settings):
    return client.chat.completions.create(model="tiny", messages=CHAT, **{"max_tokens": 80, "seed": 1, **settings})


def test_json_schema_is_that_of_generate(client):
    named = {"name": "answer", "schema": SCHEMA, "strict": True}
    answer = chat(client, response_format={"type": "json_schema", "json_schema": named}).choices[0]
    alone = generate(tiny(), CHAT, draft=DRAFT, sampling=Sampling(grammar=SCHEMA), max_new_tokens=80, seed=1)
    assert answer.message.content == alone.text
    assert answer.finish_reason == "stop"
    assert json.loads(answer.message.content)["colour"] in ("red", "green")


def test_a_class_of_pydantic_is_parsed(client):
    answer = client.chat.completions.parse(model="tiny", messages=CHAT, response_format=Animal, max_tokens=80, seed=2)
    assert answer.choices[0].message.parsed.kind in ("cat", "dog")


def test_a_stream_has_the_form_too(client):
    named = {"name": "answer", "schema": SCHEMA}
    chunks = chat(client, response_format={"type": "json_schema", "json_schema": named}, stream=True)
    json.loads("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))


def test_json_object_begins_one(client):
    answer = chat(client, response_format={"type": "json_object"}).choices[0]
    assert answer.message.content.lstrip().startswith("{")
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.message.content), dict)


def test_plain_text_is_a_format(client):
    assert chat(client, response_format={"type": "text"}, max_tokens=3).choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({"structured_outputs": {"json": SCHEMA}}, lambda text: json.loads(text)["count"] in range(1, 10)),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, lambda text: json.loads(text)["count"] in range(1, 10)),
        ({"structured_outputs": {"regex": "[ab]{3}"}}, lambda text: re.fullmatch("[ab]{3}", text)),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, lambda text: text in ("yes", "no")),
        ({"structured_outputs": {"grammar": 'start: "x" /[0-9]/'}}, lambda text: re.fullmatch("x[0-9]", text)),
        ({"guided_json": SCHEMA}, lambda text: json.loads(text)["count"] in range(1, 10)),
        ({"guided_regex": "[ab]{3}"}, lambda text: re.fullmatch("[ab]{3}", text)),
        ({"guided_choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
        ({"guided_grammar": 'start: "x" /[0-9]/'}, lambda text: re.fullmatch("x[0-9]", text)),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_vllms_names(client, given, fits):
    made = client.completions.create(model="tiny", prompt="Say", max_tokens=80, seed=1, extra_body=given)
    assert made.choices[0].finish_reason == "stop"
    assert fits(made.choices[0].text), made.choices[0].text
    assert fits(chat(client, extra_body=given).choices[0].message.content)


def test_texts_with_and_without_a_form_run_beside_each_other(client):
    both = client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=20, n=2, seed=1)
    assert {choice.finish_reason for choice in both.choices} <= {"length", "stop"}
    again = chat(client, n=3, extra_body={"structured_outputs": {"choice": ["north", "south"]}})
    assert {choice.message.content for choice in again.choices} <= {"north", "south"}


def schema(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


REFUSED = [
    ({"response_format": {"type": "xml"}}, "response_format.type", "'json_object'"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
    (schema({"type": "strin"}), "response_format", "strin"),
    (schema({"type": "array", "uniqueItems": True}), "response_format", "uniqueItems"),
    (schema({"type": "integer", "minimum": 5, "maximum": 4}), "response_format", "minimum"),
    (schema({"type": "string", "pattern": "(?=a)"}), "response_format", "look-around"),
    (schema({"$ref": "https://example.com/schema"}), "response_format", "example.com"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "JSON"),
    ({"structured_outputs": {"regex": "a(b"}}, "structured_outputs.regex", "unclosed group"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least 1 item"),
    ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice", "at least one text"),
    ({"structured_outputs": {"grammar": "start: ("}}, "structured_outputs.grammar", "cannot be used"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "not supported"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice", "give one of them"),
    ({"guided_regex": "a", **schema({"type": "integer"})}, "guided_regex", "give one of them"),
    ({"guided_regex": "a(b"}, "guided_regex", "unclosed group"),
    ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend", "unknown parameter"),
]


@pytest.mark.parametrize(
    ("given", "param", "words"), REFUSED, ids=[f"{i}-{param}" for i, (_, param, _) in enumerate(REFUSED)]
)
@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_what_cannot_be_a_form_is_refused_by_its_name(server, path, given, param, words):
    body = {"prompt": "a"} if path == "completions" else {"messages": CHAT}
    answer = server.post(f"/v1/{path}", {**body, "max_tokens": 2, **given})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert words in error["message"]
    assert "\n" not in error["message"]


def test_the_server_goes_on_after_refusals(client):
    with pytest.raises(openai.BadRequestError, match="uniqueItems"):
        chat(client, **schema({"type": "array", "uniqueItems": True}))
    assert chat(client, **schema({"const": 7})).choices[0].message.content.strip() == "7"


def test_logprobs_are_those_of_the_law_under_the_grammar(client):
    answer = client.completions.create(
        model="tiny", prompt="Say", max_tokens=5, seed=1, logprobs=5, extra_body={"guided_choice": ["yes"]}
    )
    first = answer.choices[0].logprobs.top_logprobs[0]
    assert set(first) <= {"y", "ye", "yes"}
    assert Grammar.choice(["yes"]).kind == "choice"
