"""The settings of a chat: typed as `/set NAME VALUE`, kept in transcripts, and passed to the engine."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from draftproof.commands.text_options import given
from draftproof.errors import DraftproofError, nearest, whole

NUMBERS = ("temperature", "top_k", "top_p", "min_p", "typical_p")
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
OFF = ("none", "off")


@dataclass(frozen=True)
class ChatSettings:
    """Named and meant like the options of the command line; invalid values raise when they become arguments."""

    draft: str = "auto"
    verify: str = "auto"
    lossy: str | None = None
    tree: str = "auto"
    max_new_tokens: int = 1024
    temperature: float | None = None  # of these, None stands for the model's own
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    generation_config: bool = True  # whether the model's own file decides about controls that are not given
    draft_temperature: float | None = None
    draft_top_k: int | None = None
    grammar: dict[str, str] | None = None  # that answers follow, by kind and text
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None  # of the next answer; it counts up, so that every answer has noise of its own

    @staticmethod
    def read(values: Any) -> ChatSettings:
        """The settings of a transcript, or an error that names the wrong one."""
        if not isinstance(values, Mapping):
            raise DraftproofError(f"settings must be names with values, not {values!r}")
        for name, value in values.items():
            if not _fits(value, kind_of(name)):
                raise DraftproofError(f"{name} cannot be {value!r}")
        values = {name: tuple(value) if name == "stop" else value for name, value in values.items()}
        return ChatSettings(**values)

    def changed(self, name: str, text: str) -> ChatSettings:
        """The settings with one value replaced by what the user typed, checked."""
        name = name.replace("-", "_")
        settings = dataclasses.replace(self, **{name: _parsed(name, text, kind_of(name))})
        settings.arguments()
        return settings

    @property
    def controls(self) -> dict[str, Any]:
        """The sampling controls that are given."""
        return given(**{name: getattr(self, name) for name in NUMBERS + PENALTIES})

    def arguments(self, own: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
        """The arguments of `stream`, all but the drafters, checked as far as they can be without a model.

        own       sampling controls that the model's generation_config.json decides
        """
        from draftproof.draft import Tree
        from draftproof.engine.choices import choose_draw, choose_rule
        from draftproof.noise import check_seed
        from draftproof.sampling import Sampling

        rule, tree = choose_rule(self.verify, self.lossy), None if self.tree == "auto" else Tree.parse(self.tree)
        if tree is not None and (self.verify != "auto" or self.lossy is not None):
            choose_draw(rule, tree, None)
        ends = () if self.ignore_eos else None
        sampling = Sampling(**{**own, **self.controls}, end_tokens=ends, grammar=self.grammar)
        changes = given(temperature=self.draft_temperature, top_k=self.draft_top_k)
        return {
            "verify": self.verify,
            "lossy": self.lossy,
            "tree": tree,
            "sampling": sampling,
            "draft_sampling": dataclasses.replace(sampling, **changes) if changes else None,
            "max_new_tokens": whole("max_new_tokens", self.max_new_tokens),
            "stop": self.stop,
            "seed": None if self.seed is None else check_seed(self.seed),
        }

    def rows(self) -> list[tuple[str, str]]:
        """Every setting with its value, as one would type it."""
        return [(name, _typed(getattr(self, name))) for name in NAMES]


NAMES = tuple(field.name for field in dataclasses.fields(ChatSettings))


def kind_of(name: str) -> Any:
    """The type of a setting, or an error with the nearest name."""
    if name not in NAMES:
        near = nearest(name, NAMES)
        hint = f"did you mean {near!r}?" if near else "/set shows all of them"
        raise DraftproofError(f"unknown setting {name!r}: {hint}")
    return get_type_hints(ChatSettings)[name]


def _optional(kind: Any) -> bool:
    return isinstance(kind, types.UnionType) and type(None) in get_args(kind)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value from JSON is of this type; a whole number is a float too, and true is no number."""
    if _optional(kind):
        return value is None or _fits(value, get_args(kind)[0])
    if kind is bool or kind is str:
        return isinstance(value, kind)
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    if kind == dict[str, str]:
        return isinstance(value, dict) and value.keys() == {"kind", "text"}
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _parsed(name: str, text: str, kind: Any) -> Any:
    """What the user typed, as a value of this type."""
    if _optional(kind):
        return None if text.lower() in OFF else _parsed(name, text, get_args(kind)[0])
    if kind is bool:
        if text.lower() not in ("on", "true", "off", "false"):
            raise DraftproofError(f"{name} is on or off, not {text!r}")
        return text.lower() in ("on", "true")
    if kind is str:
        return text
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError as error:
            raise DraftproofError(f"{name} takes a {'whole ' if kind is int else ''}number, not {text!r}") from error
    if kind == dict[str, str]:
        return _grammar(text)
    return () if text.lower() in OFF else (text,)


def _grammar(text: str) -> dict[str, str]:
    """A grammar as one can type it: "json", a JSON schema, or a list of choices."""
    from draftproof.grammar import as_grammar
    from draftproof.models.grammars import check

    try:
        value = text if text == "json" else json.loads(text)
    except json.JSONDecodeError:
        value = None
    found = as_grammar(value)
    if found is None:
        raise DraftproofError(f'grammar takes json, a JSON schema or a list such as ["yes", "no"], not {text!r}')
    return check(found).as_dict


def _typed(value: Any) -> str:
    """A value as one would type it."""
    if isinstance(value, dict):
        return str(value["text"] or value["kind"])
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(map(repr, value)) or "none"
    return "none" if value is None else str(value)
