"""Chat messages rendered by a model's chat template, as transformers renders them.

A template is a program that came with the model, so it runs in jinja's sandbox. What it may call beside jinja's own is
what transformers offers: raise_exception, strftime_now, tojson without HTML escapes, loop controls, `dict` and
`namespace` that reach no internals, and the tag `generation`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

TAG = "CONTINUE_FINAL_MESSAGE_TAG "  # marks where the final message ends in the rendered text


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    names: Mapping[str, str],
    add_generation_prompt: bool,
    continue_final_message: bool,
) -> str:
    """The messages as text.

    names                     special tokens by name, such as bos_token
    continue_final_message    the text ends with the final message's content, which the model is to continue
    """
    if not messages:
        raise ValueError("there are no messages: give at least one")
    if continue_final_message and add_generation_prompt:
        raise ValueError("a new message cannot be started where the final one is continued: ask for one of them")
    chat, final = [dict(message) for message in messages], ""
    if continue_final_message:
        final = chat[-1]["content"]
        chat[-1]["content"] = final + TAG
    text = _compiled(template).render(
        messages=chat, tools=None, documents=None, add_generation_prompt=add_generation_prompt, **names
    )
    if not continue_final_message:
        return text
    if final.strip() not in text or TAG.strip() not in text:
        raise ValueError("the chat template does not show the final message as it is, so it cannot be continued")
    before, _, after = text.rpartition(TAG.strip())
    return before if after.startswith(" ") else before.rstrip()  # without the space, the template has trimmed it


def is_plain(messages: object) -> bool:
    """Whether these are messages of text alone, under names that every template knows."""
    return isinstance(messages, list | tuple) and all(
        isinstance(message, Mapping)
        and all(type(key) is str and type(value) is str and key not in REASONING for key, value in message.items())
        for message in messages
    )


REASONING = ("reasoning_content", "thinking", "reasoning")  # transformers copies each of them to the others


@lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    sandbox.filters["tojson"] = _tojson
    sandbox.globals.update(
        raise_exception=_raise, strftime_now=_strftime_now, dict=_Dictionaries(), namespace=_PublicNamespace
    )
    return sandbox.from_string(template)


class _GenerationTag(Extension):
    """{% generation %} ... {% endgeneration %} marks what the model wrote; its text is shown as it is."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own form)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_show"), [], [], body).set_lineno(line)

    def _show(self, caller: Any) -> Any:
        return caller()


class _Dictionaries:
    """`dict` without its attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _PublicNamespace(Namespace):
    """`namespace` that keeps no names which begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *given = args
        names = dict(*given, **kwargs)
        for name in names:
            _check_public(name)
        Namespace.__init__(self, names)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _check_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a chat template may not keep {name!r} in a namespace")


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: Any = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
