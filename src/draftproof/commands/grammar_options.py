"""The options that say what form a text must have: a schema, an expression, a grammar, or a few choices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.errors import DraftproofError
from draftproof.paths import read_text

if TYPE_CHECKING:
    from draftproof.grammar import Grammar

JsonSchema = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write JSON that is valid by the JSON schema in this file.")
]
JsonObject = Annotated[bool, typer.Option("--json-object", help="Write a JSON object, whatever is in it.")]
Regex = Annotated[str | None, typer.Option(help="Write a text that this regular expression matches as a whole.")]
LarkFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a text of the Lark grammar in this file.")]
Choice = Annotated[list[str] | None, typer.Option(help="Write this text or one of the others; may be repeated.")]


def grammar_of(
    json_schema: Path | None, json_object: bool, regex: str | None, grammar: Path | None, choice: list[str] | None
) -> Grammar | None:
    """The grammar that the options name, checked, so that a bad one is refused before a model is loaded."""
    named = {
        "--json-schema": json_schema,
        "--json-object": json_object or None,
        "--regex": regex,
        "--grammar": grammar,
        "--choice": choice or None,
    }
    chosen = [name for name, value in named.items() if value is not None]
    if not chosen:
        return None
    if len(chosen) > 1:
        raise DraftproofError(f"{' and '.join(chosen)} each name a form of the text: give only one of them")
    from draftproof.grammar import Grammar
    from draftproof.models.grammars import check

    if json_schema is not None:
        return _of_file(json_schema, Grammar.json_schema)
    if grammar is not None:
        return _of_file(grammar, Grammar.lark)
    if regex is not None:
        return check(Grammar.regex(regex))
    return check(Grammar.choice(choice) if choice else Grammar.json_schema({"type": "object"}))


def _of_file(path: Path, kind: Callable[[str], Grammar]) -> Grammar:
    """The grammar in a file; errors name the file."""
    from draftproof.models.grammars import check

    text = read_text(path, "grammars")
    try:
        return check(kind(text))
    except DraftproofError as error:
        raise DraftproofError(f"{path}: {error}") from error
