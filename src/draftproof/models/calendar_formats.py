"""Dates in JSON schemas: llguidance takes 29 February in every year, so their formats become stricter patterns."""

from __future__ import annotations

from typing import Any

LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
DATE = f"(?:{YEAR}-{DAY}|{LEAP}-02-29)"
CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
TIME = rf"{CLOCK}:(?:[0-5][0-9]|60)(?:\.[0-9]+)?(?:[Zz]|[+-]{CLOCK})"
PATTERNS = {"date": f"^{DATE}$", "date-time": f"^{DATE}[Tt]{TIME}$"}

STATED = frozenset({"pattern", "minLength", "maxLength"})
DATA = frozenset({"const", "enum", "default", "examples"})  # keywords whose values are no schemas


def with_patterns(schema: Any) -> Any:
    """The schema with a pattern in place of each of these formats, where it says nothing more about the string."""
    if isinstance(schema, list):
        return [with_patterns(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: part if key in DATA else with_patterns(part) for key, part in schema.items()}
    name = made.get("format")
    if isinstance(name, str) and name in PATTERNS and not made.keys() & STATED:
        del made["format"]
        made["pattern"] = PATTERNS[name]
    return made
