"""Shows docstrings as they are meant: examples as code, columns of names and meanings as lists, comments on fields.

A list of parameters has one entry a line: a name, two spaces or more, what it means.

    target     a model, or the name of one
    seed       same seed, settings and machine:
               same text
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Docstring, Extension

ENTRY = re.compile(r"^(?P<names>\w+(?:, \w+)*) {2,}(?P<text>\S.*)$")


class Docstrings(Extension):
    """Turns them into Markdown."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
        elif isinstance(obj, Attribute) and obj.parent.is_class and (said := comment(obj)):
            obj.docstring = Docstring(said[0].upper() + said[1:], parent=obj)


def comment(field: Attribute) -> str:
    """What the comment beside a field of a class says, or the one on the line above it."""
    lines = field.lines_collection[field.filepath]
    beside = re.search(r"#\s+(?!noqa|type:)(.+)$", lines[field.lineno - 1])
    above = re.match(r"\s*#\s+(.+)$", lines[field.lineno - 2])
    return beside[1] if beside else above[1] if above else ""


def as_markdown(docstring: str) -> str:
    """The docstring with a fence around every example and a Markdown list for every list in columns."""
    paragraphs = re.split(r"\n\s*\n", docstring)
    return "\n\n".join(_fenced(part) if part.lstrip().startswith(">>>") else _listed(part) for part in paragraphs)


def _fenced(example: str) -> str:
    return f"```pycon\n{example}\n```"


def _listed(paragraph: str) -> str:
    lines: list[str] = []
    inside = False
    for line in paragraph.splitlines():
        entry = ENTRY.match(line)
        if entry:
            names = ", ".join(f"`{name}`" for name in entry["names"].split(", "))
            lines += [] if inside else [""]
            lines.append(f"- {names}: {entry['text']}")
            inside = True
        else:
            lines.append(f"  {line.strip()}" if inside else line)
    return "\n".join(lines)
