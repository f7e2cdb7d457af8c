"""What a server and its requests ask for: the verification rule."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from draftproof.errors import DraftproofError

KEY = "draftproof"  # in --additional-config, and in a request's extra_args
VARIABLE = "DRAFTPROOF_VERIFY"
RULES = ("token", "block")


class PluginSettings(NamedTuple):
    """The settings of a server."""

    verify: str  # the rule of requests that do not choose one


def of_server(additional: Any) -> PluginSettings | None:
    """The settings in vLLM's additional config or in the environment; None where nothing is asked for.

    >>> of_server({"draftproof": {"verify": "block"}})
    PluginSettings(verify='block')
    >>> of_server({})
    """
    if isinstance(additional, Mapping) and KEY in additional:
        return PluginSettings(_rule(additional[KEY], f"--additional-config: {KEY}"))
    if name := os.environ.get(VARIABLE):
        return PluginSettings(_rule({"verify": name}, VARIABLE))
    return None


def of_request(extra: Mapping[str, Any] | None) -> str | None:
    """The rule that a request chooses in its extra_args; None where it chooses none."""
    return _rule(extra[KEY], f"extra_args: {KEY}") if extra and KEY in extra else None


def _rule(asked: Any, place: str) -> str:
    """A rule's name, or a mapping that has nothing else: in the HTTP interface vLLM lets no mapping through."""
    name = asked["verify"] if isinstance(asked, Mapping) and set(asked) == {"verify"} else asked
    if name not in RULES:
        choices = " or ".join(f'{{"verify": "{rule}"}}' for rule in RULES)
        raise DraftproofError(f"{place} must be {choices}, or the rule alone, not {asked!r}")
    return str(name)
