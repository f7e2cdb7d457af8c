"""The form that a client asks its texts to have, by OpenAI's and vLLM's names, as a grammar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from draftproof.errors import DraftproofError
from draftproof.grammar import Grammar
from draftproof.server.errors import refused
from draftproof.server.protocol import TextBody


class Form(NamedTuple):
    """A grammar, and the parameter that asks for it."""

    name: str
    grammar: Grammar


def form_of(body: TextBody) -> Form | None:
    """The form that a request asks for, if it asks for one; more than one is refused."""
    asked = list(_asked(body))
    if len(asked) > 1:
        names = " and ".join(name for name, _, _ in asked)
        raise refused(asked[1][0], f"{names} each ask for a form of the text: give one of them")
    for name, make, value in asked:
        try:
            return Form(name, make(value))
        except DraftproofError as error:
            raise refused(name, error) from error
    return None


Asked = tuple[str, Callable[[Any], Grammar], Any]  # a parameter, the kind of grammar that it asks for, its value


def _asked(body: TextBody) -> Iterator[Asked]:
    form = body.response_format
    if form is not None and form.type == "json_object":
        yield "response_format", _json_object, True
    if form is not None and form.type == "json_schema":
        if form.json_schema is None:
            raise refused("response_format.json_schema", "response_format.json_schema is missing")
        yield "response_format", Grammar.json_schema, form.json_schema.schema_
    structured = body.structured_outputs
    if structured is not None:
        given = {"json": structured.json_, "regex": structured.regex, "choice": structured.choice}
        yield from _kinds("structured_outputs.", {**given, "grammar": structured.grammar})
        if structured.json_object:
            yield "structured_outputs.json_object", _json_object, True
    older = {"json": body.guided_json, "regex": body.guided_regex, "choice": body.guided_choice}
    yield from _kinds("guided_", {**older, "grammar": body.guided_grammar})


def _kinds(prefix: str, given: dict[str, Any]) -> Iterator[Asked]:
    made = {"json": Grammar.json_schema, "regex": Grammar.regex, "choice": Grammar.choice, "grammar": Grammar.lark}
    for name, value in given.items():
        if value is not None:
            yield f"{prefix}{name}", made[name], value


def _json_object(_: Any) -> Grammar:
    return Grammar.json_schema({"type": "object"})
