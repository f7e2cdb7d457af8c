"""Dates in JSON schemas are days that there were or will be."""

import re
from datetime import date, datetime, timedelta

import pytest

from draftproof.models.calendar_formats import PATTERNS, with_patterns

YEARS = [*range(1, 13), 96, 100, 400, 999, 1000, *range(1896, 1905), *range(1999, 2026), 2100, 2400, 9999]


def is_date(text):
    try:
        return date.fromisoformat(text) is not None
    except ValueError:
        return False


def test_dates_are_those_of_the_calendar():
    pattern = re.compile(PATTERNS["date"])
    texts = [f"{year:04}-{month:02}-{day:02}" for year in (0, *YEARS) for month in range(14) for day in range(33)]
    assert [text for text in texts if bool(pattern.match(text)) != is_date(text)] == []


def test_times_are_those_of_the_clock():
    pattern = re.compile(PATTERNS["date-time"])
    moment = datetime(2024, 2, 29, 0, 0, 0)
    for step in range(0, 86_400, 1237):
        assert pattern.match((moment + timedelta(seconds=step)).isoformat() + "Z")
    for good in ("2016-12-31T23:59:60Z", "2024-02-29t01:02:03.5z", "2024-02-29T01:02:03+14:00"):
        assert pattern.match(good)
    for bad in ("2023-02-29T00:00:00Z", "2024-02-29T24:00:00Z", "2024-02-29T00:60:00Z", "2024-02-29T00:00:00"):
        assert not pattern.match(bad)


def test_only_what_is_a_schema_is_changed():
    own = {"type": "string", "format": "date"}
    schema = {
        "properties": {"format": own, "other": {"const": own}, "time": {"format": "time"}},
        "required": ["format"],
    }
    made = with_patterns(schema)
    assert made["properties"]["format"] == {"type": "string", "pattern": PATTERNS["date"]}
    assert made["properties"]["other"] == {"const": own}
    assert made["properties"]["time"] == {"format": "time"}
    assert schema["properties"]["format"] == own  # the caller's is left alone


@pytest.mark.parametrize("stated", [{"pattern": "^2"}, {"maxLength": 12}])
def test_a_string_that_is_described_further_is_left_alone(stated):
    schema = {"type": "string", "format": "date", **stated}
    assert with_patterns(schema) == schema
