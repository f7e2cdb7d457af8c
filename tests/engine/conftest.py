"""Fixtures of the engine's tests."""

from __future__ import annotations

from collections import Counter
from importlib import import_module

import pytest


@pytest.fixture
def names(monkeypatch) -> Counter[tuple[int, ...]]:
    """How often each number was drawn, by its name."""
    seen: Counter[tuple[int, ...]] = Counter()

    decide, propose = (import_module(f"draftproof.engine.eager.{name}") for name in ("decide", "propose"))
    draw = propose.noise

    def record(names, lane, count):
        seen.update((*key, step, int(lane), index) for key, step in names for index in range(count))
        return draw(names, lane, count)

    for module in (propose, decide):
        monkeypatch.setattr(module, "noise", record)
    return seen
