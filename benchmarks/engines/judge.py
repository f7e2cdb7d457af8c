"""The verdict on an engine's transcripts: an audit, and before "not exact" is said, a histogram that is independent."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from draftproof.audit import audit, compare, read
from draftproof.audit.report import Report
from draftproof.models import drafter, load
from draftproof.models.base import Model
from draftproof.models.table import TableModel

TOLERANCES = (1e-5, 1e-4, 1e-3, 3e-3, 1e-2)
RARE = 10  # tokens that came fewer times than this, in both histograms together, are counted as one
SURE = 1e-6  # chance of such histograms if they had one law, below which an alarm counts as confirmed


def judged(transcripts: Path, target: Path, draft: str, tolerance: float) -> Report:
    """The audit of a file."""
    model = opened(target)
    return audit(read(transcripts, model), model, draft=drafter(draft, model), tolerance=tolerance)


def calibrated(transcripts: Path, target: Path) -> Report:
    """The audit of plain sampling with the smallest tolerance at which it passes; with the largest if none does."""
    for tolerance in TOLERANCES:
        report = judged(transcripts, target, "none", tolerance)
        if report.exact:
            break
    return report


def paired(transcripts: Path, plain: Path, target: Path, draft: str) -> Report:
    """The comparison of a file with the same engine's plain sampling, which needs no tolerance."""
    model = opened(target)
    return compare(read(transcripts, model), read(plain, model), model, draft=drafter(draft, model))


def opened(target: Path) -> Model:
    """The model of a folder, or that of a JSON file with a table of probabilities by the last token."""
    if target.suffix != ".json":
        return load(target)
    table = np.array(json.loads(target.read_text())["target"])
    return TableModel(lambda context: table[context[-1] if context else 0])


class Compared(NamedTuple):
    """Two histograms, compared by chi-square."""

    position: int  # of the token in the text, from 1; 0: of whole texts
    statistic: float
    degrees: int
    chance: float  # of at least this statistic if both had one law
    distance: float  # total variation


def compared(plain: Path, other: Path) -> Compared:
    """Two files of samples of one prompt, where they differ most; the chance accounts for the choice."""
    lines = [path.read_text(encoding="utf-8").splitlines() for path in (plain, other)]
    texts = [[json.loads(line)["output_token_ids"] for line in side] for side in lines]
    found = [histograms(*([tuple(text) for text in side] for side in texts))]
    for t in range(min(max(map(len, side)) for side in texts)):
        tokens = histograms(*([text[t] for text in side if len(text) > t] for side in texts))
        found.append(tokens._replace(position=t + 1))
    worst = min(found, key=lambda one: one.chance)
    return worst._replace(chance=min(1.0, len(found) * worst.chance))


def histograms(one: Sequence[Hashable], two: Sequence[Hashable]) -> Compared:
    """Chi-square of two samples of tokens or texts.

    >>> histograms([0] * 500 + [1] * 500, [0] * 700 + [1] * 300).chance < 1e-6
    True
    """
    from scipy.stats import chi2

    counts, sizes = (Counter(one), Counter(two)), (len(one), len(two))
    distance = sum(abs(counts[0][token] / sizes[0] - counts[1][token] / sizes[1]) for token in {*one, *two}) / 2
    common = [token for token in {*one, *two} if counts[0][token] + counts[1][token] >= RARE]
    cells = [(counts[0][token], counts[1][token]) for token in common]
    rest = sizes[0] - sum(a for a, _ in cells), sizes[1] - sum(b for _, b in cells)
    cells += [rest] if sum(rest) >= RARE else []
    share = sizes[0] / sum(sizes)
    statistic = sum(
        (a - (a + b) * share) ** 2 / ((a + b) * share) + (b - (a + b) * (1 - share)) ** 2 / ((a + b) * (1 - share))
        for a, b in cells
    )
    degrees = max(len(cells) - 1, 1)
    return Compared(0, round(statistic, 1), degrees, float(chi2.sf(statistic, degrees)), round(distance, 4))


def row(report: Report, beside: Report | None, checked: Compared | None) -> dict[str, Any]:
    """What is recorded of an audit, of the comparison with plain sampling and of the histograms after an alarm."""
    told = report.as_dict()
    kept = ("tokens", "transcripts", "alpha", "tolerance", "lead", "power", "impossible", "perplexity")
    verdict = "exact so far"
    if alarm(report, beside):
        verdict = "not exact" if checked is not None and checked.chance < SURE else "alarm, not confirmed"
    return {
        "verdict": verdict,
        "evidence": _finite(report),
        **{key: told[key] for key in kept},
        "paired": None if beside is None else {"evidence": _finite(beside), "lead": beside.lead},
        "histogram": None if checked is None else checked._asdict(),
    }


def alarm(report: Report, beside: Report | None) -> bool:
    """Whether the audit or the comparison with plain sampling raised one."""
    return not report.exact or (beside is not None and not beside.exact)


def _finite(report: Report) -> float | str:
    return report.evidence if math.isfinite(report.evidence) else "infinite"  # JSON has no infinity
