"""Present the results: a table with its notes for people, JSON for programs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from draftproof.draws import DRAWS
from draftproof.limits import FACTORS, LimitReport, Measured, TemperatureResult
from draftproof.limits.advice import NOISY, advice, shape, speed

if TYPE_CHECKING:
    from rich.table import Table


NONE = "–"  # for a share of nothing
WIDE = 116  # columns for a table with errors


def ranked(result: TemperatureResult) -> list[Measured]:
    """The rules sorted by number of guesses, then by tokens per call, the best last."""
    return sorted(result.rules, key=lambda rule: (rule.case.siblings, rule.tokens))


def heading(result: TemperatureResult, texts: int) -> str:
    """What was measured, and how often the drafter had something to say."""
    where = f"{result.positions} positions of {texts} text{'s' * (texts != 1)}"
    return f"temperature {result.temperature:g}, {where}, the drafter had candidates at {result.drafted} of them"


def table(result: TemperatureResult, width: int = WIDE) -> Table:
    """A table with a row for each rule and K; acceptance is for one token, tokens a call for whole paths.

    On a narrow screen it leaves out the errors.
    """
    from rich.table import Table

    wide = width >= WIDE
    heads = ("acceptance", "limit of draws", "of limit", "tokens a call", "best tree", "speed-up")
    short = ("accepted", "limit of draws", "of limit", "tokens", "tree", "speed")
    grid = Table(box=None, pad_edge=False, collapse_padding=not wide)
    for head in ("K", "rule", *(heads if wide else short)):
        grid.add_column(head, justify="left" if head in ("rule", "best tree", "tree") else "right")
    before = None
    for rule in ranked(result):
        if before not in (None, rule.case.siblings):
            grid.add_row()
        before = rule.case.siblings
        most = f" of {rule.tokens_limit:.2f}" if wide and rule.tokens_limit is not None else ""
        grid.add_row(
            str(rule.case.siblings),
            rule.case.rule,
            _with_error(rule.acceptance, rule.acceptance_error if wide else math.nan, 3),
            f"{rule.case.draw} {rule.limit:.3f}",
            NONE if rule.share is None else _share(rule.share, rule.share_error if wide else None),
            f"{_with_error(rule.tokens, rule.tokens_error if wide else math.nan, 2)}{most}",
            shape(rule),
            speed(rule.plan) if wide else f"{rule.plan.speedup:.2f}",
        )
    return grid


def notes(result: TemperatureResult) -> list[str]:
    """What the columns mean: which limit holds for which draws, and why a share may be missing."""
    shown = [draw for name, draw in DRAWS.items() if any(rule.case.draw == name for rule in result.rules)]
    lines = ["limit of draws: what no exact rule passes whose K candidates for one token are drawn in that way"]
    lines += [f"  {draw.name}: {draw.summary}" for draw in shown]
    if any(rule.tokens_limit is not None for rule in result.rules):
        lines.append("tokens a call: for K = 1 beside the most of any rule on the same paths; unknown for K > 1")
    if any(rule.share is None for rule in result.rules):
        lines.append(f"{NONE}: the limit is zero, because the drafter had no candidate that the target would accept")
    if any(math.isinf(rule.plan.interval[1]) for rule in result.rules):
        lines.append(f"({NOISY}): the times of calls differ too much for a range; measure again on an idle machine")
    return lines


def clock(report: LimitReport) -> str:
    """The times from which the speed-ups are predicted."""
    models = report.times.models
    calls = ", ".join(f"{size}: {call.mean * 1e3:.1f}" for size, call in models.target.items())
    return f"Times in ms: draft call {models.draft.mean * 1e3:.1f}; target call by tokens {calls}."


def as_dict(report: LimitReport) -> dict[str, Any]:
    """The results as a dictionary for JSON."""
    models = report.times.models
    return {
        "target": report.target,
        "draft": report.draft,
        "settings": report.settings._asdict(),
        "seconds": {
            "draft": models.draft._asdict(),
            "target": {size: call._asdict() for size, call in models.target.items()},
        },
        "results": [
            {
                "temperature": result.temperature,
                "positions": result.positions,
                "positions_with_draft": result.drafted,
                "rules": [_rule(rule) for rule in ranked(result)],
                "draft_temperature": {
                    K: dict(zip(map(str, FACTORS), estimate.mean.tolist(), strict=True))
                    for K, estimate in result.draft.items()
                },
                "advice": advice(report, result),
            }
            for result in report.results
        ],
    }


def _rule(rule: Measured) -> dict[str, Any]:
    plan = rule.plan
    return {
        "rule": rule.case.rule,
        "draws": rule.case.draw,
        "k": rule.case.siblings,
        "acceptance": rule.acceptance,
        "acceptance_error": _number(rule.acceptance_error),
        "limit": rule.limit,
        "of_limit": rule.share,
        "of_limit_error": None if rule.share_error is None else _number(rule.share_error),
        "tokens_per_call": rule.tokens,
        "tokens_per_call_error": _number(rule.tokens_error),
        "tokens_per_call_limit": rule.tokens_limit,
        "best_tree": shape(rule),
        "best_tree_tokens_per_call": plan.tokens,
        "speedup": plan.speedup,
        "speedup_error": _number(plan.error),
    }


def _share(share: float, error: float | None) -> str:
    return _with_error(100 * share, math.nan if error is None else 100 * error, 1) + "%"


def _with_error(value: float, error: float, digits: int) -> str:
    """The value and its standard error; that is not a number after a single position."""
    return f"{value:.{digits}f}" + (f" ± {error:.{digits}f}" if math.isfinite(error) else "")


def _number(value: float) -> float | None:
    """None for NaN, which JSON lacks: an error is NaN after a single position."""
    return value if math.isfinite(value) else None
