"""Goodness of fit with one failure rate for the whole suite, after numpyro's gof: no test has a tolerance of its own.

All statistical tests together fail a correct program with probability below FAMILY_WISE, as long as there are at most
BUDGET calls of `check`. Seeds are fixed, so a test that passes once passes always.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from scipy.stats import chi2

FAMILY_WISE = 1e-6
BUDGET = 200
LEAST_EXPECTED = 10  # below that the chi-square law is a poor stand-in for the statistic's own


def check(counts: Mapping[Any, int], law: Mapping[Any, Any]) -> None:
    """Fail unless the counted outcomes could have come from the law: Pearson's chi-square.

    >>> check({"a": 498, "b": 502}, {"a": 0.5, "b": 0.5})
    >>> check({"a": 5, "b": 4}, {"a": 0.5, "b": 0.5})
    Traceback (most recent call last):
        ...
    ValueError: 9 samples are too few: the rarest outcome needs 20
    """
    samples = sum(counts.values())
    expected: dict[Hashable, float] = {outcome: float(mass) * samples for outcome, mass in law.items() if mass > 0}
    impossible = [outcome for outcome, count in counts.items() if count and outcome not in expected]
    assert not impossible, f"outcomes of probability zero occurred: {impossible[:5]}"
    rarest = min(expected.values())
    if rarest < LEAST_EXPECTED:
        raise ValueError(
            f"{samples} samples are too few: the rarest outcome needs {LEAST_EXPECTED * samples / rarest:.0f}"
        )
    statistic = sum((counts.get(outcome, 0) - mean) ** 2 / mean for outcome, mean in expected.items())
    chance = float(chi2.sf(statistic, len(expected) - 1)) if len(expected) > 1 else 1.0
    assert chance >= FAMILY_WISE / BUDGET, f"chi-square {statistic:.1f} on {len(expected)} cells: chance {chance:.1e}"
