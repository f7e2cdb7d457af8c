"""Grammar: a description of the texts that may be written, and State, a place in such a text.

A description knows no tokenizer. `models.grammars` compiles it for one, into the state before the first token.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from draftproof.errors import DraftproofError

KINDS = ("json_schema", "json", "regex", "choice", "lark", "tokens")
LONGEST = 1_000_000  # characters of a description


@dataclass(frozen=True)
class Grammar:
    """Which texts may be written: `kind` says how `text` describes them.

    >>> Grammar.choice(["yes", "no"])
    Grammar(kind='choice', text='["yes","no"]')
    """

    kind: str
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise DraftproofError(f"unknown kind of grammar {self.kind!r}: choose from {', '.join(KINDS)}")
        if not isinstance(self.text, str):
            raise DraftproofError(f"a {self.kind} grammar is described by text, not {type(self.text).__name__}")
        if len(self.text) > LONGEST:
            raise DraftproofError(f"the grammar has {len(self.text)} characters: give at most {LONGEST}")
        if self.kind == "json_schema" and not isinstance(_read_json(self.text, "a JSON schema"), dict | bool):
            raise DraftproofError(f"a JSON schema is an object, not {_short(self.text)}")
        if self.kind == "choice":
            _check_choices(_read_json(self.text, "the list of choices"))
        if self.kind in ("regex", "lark") and not self.text:
            raise DraftproofError(f"the {self.kind} grammar is empty: describe at least one text")

    @staticmethod
    def json_schema(schema: Mapping[str, Any] | str) -> Grammar:
        """JSON that fits a schema, given as a dict or as JSON text; keys are written in the order of the schema."""
        return Grammar("json_schema", _as_json(_read_json(schema) if isinstance(schema, str) else schema))

    @staticmethod
    def json() -> Grammar:
        """Any JSON value."""
        return Grammar("json")

    @staticmethod
    def regex(pattern: str) -> Grammar:
        """Texts that a regular expression matches from the first character to the last."""
        return Grammar("regex", pattern)

    @staticmethod
    def choice(options: Collection[str]) -> Grammar:
        """One of these texts."""
        _check_choices(options)
        return Grammar("choice", _as_json(list(options)))

    @staticmethod
    def lark(text: str) -> Grammar:
        """A context-free grammar in Lark's notation, whose first rule is `start`."""
        return Grammar("lark", text)

    @staticmethod
    def tokens(states: Sequence[Mapping[int, int]], accepting: Collection[int]) -> Grammar:
        """A finite automaton over token ids, for models without a tokenizer: from state s, where a text begins in 0,
        token t leads to state states[s][t]; the text may end in accepting states."""
        edges = [{str(int(token)): int(state) for token, state in one.items()} for one in states]
        return Grammar("tokens", _as_json({"states": edges, "accepting": sorted(map(int, accepting))}))

    @property
    def as_dict(self) -> dict[str, str]:
        """The same as JSON has it; `Grammar(**fields)` makes it again."""
        return {"kind": self.kind, "text": self.text}


def as_grammar(given: Any) -> Grammar | None:
    """The grammar that a caller means: a Grammar, "json", a dict (a schema) or a list of strings (choices)."""
    if given is None or isinstance(given, Grammar):
        return given
    if isinstance(given, Mapping):
        return Grammar(**given) if given.keys() == {"kind", "text"} else Grammar.json_schema(given)
    if isinstance(given, str):
        if given == "json":
            return Grammar.json()
        raise DraftproofError(
            f'unknown grammar {_short(given)}: use "json", or Grammar.regex(...) or Grammar.lark(...)'
        )
    if isinstance(given, Collection):
        return Grammar.choice(given)
    raise DraftproofError(f"grammar must be a Grammar, a JSON schema or a list of choices, not {given!r}")


class State(Protocol):
    """A place in a text that follows a grammar; a text moves on from it by one token."""

    @property
    def allowed(self) -> np.ndarray:
        """[V] whether each token may come next; end tokens may where the text may end. May raise a DraftproofError."""
        ...

    def among(self, ids: np.ndarray) -> np.ndarray:
        """[D] the same of the tokens `ids` alone."""
        ...

    @property
    def expected(self) -> int:
        """The token that comes next for sure or nearly so, as in a key that is spelled out; -1 where it is open."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the text has ended: by an end token, or where nothing can follow and there are no end tokens."""
        ...

    def after(self, token: int) -> State | None:
        """The place after one more token; None where that token is not allowed."""
        ...


def _check_choices(options: Any) -> None:
    strange = not isinstance(options, Collection) or isinstance(options, str | bytes | Mapping) or not options
    if strange or not all(isinstance(option, str) and option for option in options):
        raise DraftproofError(f"choices are a list of at least one text, not {_short(options)}")


def _read_json(text: str, what: str = "a JSON schema") -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DraftproofError(f"{what} must be JSON, and {_short(text)} is not: {error}") from error


def _as_json(value: Any) -> str:
    """Canonical JSON; the order of keys stays, because it is the order in which they are written."""
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise DraftproofError(f"a grammar must be made of JSON values: {error}") from error


def _short(value: Any) -> str:
    words = repr(value)
    return words if len(words) <= 60 else f"{words[:57]}..."
