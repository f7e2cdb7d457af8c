"""Fixtures of the engine's tests."""

from __future__ import annotations

from collections import Counter

import pytest

from draftproof.engine.eager import rows as naming


@pytest.fixture
def names(monkeypatch) -> Counter[tuple[int, ...]]:
    """How often each number was drawn, by its name; one by one and in arrays."""
    seen: Counter[tuple[int, ...]] = Counter()
    draw, draw_one = naming.uniforms, naming.uniform

    def record(seed, request, step, lane, count):
        for name in zip(seed.tolist(), request.tolist(), step.tolist(), strict=True):
            seen.update((*name, int(lane), index) for index in range(count))
        return draw(seed, request, step, lane, count)

    def record_one(*name):
        seen.update([name])
        return draw_one(*name)

    monkeypatch.setattr(naming, "uniforms", record)
    monkeypatch.setattr(naming, "uniform", record_one)
    return seen
