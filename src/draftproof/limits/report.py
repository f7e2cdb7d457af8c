"""Present the results: a table, a sentence of advice and a figure for people, JSON for programs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.errors import DraftproofError
from draftproof.limits import FACTORS, LimitReport, Measured, TemperatureResult
from draftproof.paths import check_writable

if TYPE_CHECKING:
    from rich.table import Table


def ranked(result: TemperatureResult) -> list[Measured]:
    """The rules sorted by number of guesses, then by tokens per call, the best last."""
    return sorted(result.rules, key=lambda rule: (rule.case.siblings, rule.tokens))


def best(result: TemperatureResult) -> Measured:
    """The fastest rule that accepts something; one that accepts nothing may look fast through timing noise."""
    return max(result.rules, key=lambda rule: (rule.plan.tokens > 1, rule.plan.speedup))


def shape(rule: Measured) -> str:
    """The planned tree as the command line takes it."""
    length = rule.plan.tree.depth[-1]
    return f"chain:{length}" if rule.case.siblings == 1 else f"paths:{rule.case.siblings}x{length}"


def advice(report: LimitReport, result: TemperatureResult) -> str:
    """Recommend a configuration in one sentence; a gain within its own error counts as none."""
    rule = best(result)
    gain = f"{rule.plan.speedup:.2f} ± {rule.plan.error:.2f} times the speed of plain sampling"
    start = f"At temperature {result.temperature:g} on this machine use"
    if rule.plan.tokens == 1:
        return f"{start} --draft none: no rule accepted anything."
    if rule.plan.speedup - rule.plan.error <= 1:
        return f"{start} --draft none: the best rule, {rule.case.rule} with {shape(rule)}, is predicted {gain}."
    settings = f"--verify {rule.case.rule} --tree {shape(rule)}"
    return f"{start} {settings}: {rule.plan.tokens:.2f} tokens a call, predicted {gain}."


def hotter(result: TemperatureResult) -> str:
    """The drafter's temperature with the largest acceptance in theory."""
    parts = []
    for siblings, estimate in result.draft.items():
        place = int(estimate.mean.argmax())
        gain = estimate.mean[place] - estimate.mean[FACTORS.index(1.0)]
        parts.append(f"K = {siblings}: {FACTORS[place]:g} times the target's (acceptance {gain:+.3f})")
    return "Best draft temperature, " + "; ".join(parts) + "."


def table(result: TemperatureResult) -> Table:
    """A table with a row for each rule and K; acceptance is for one token, tokens a call for whole paths."""
    from rich.table import Table

    heads = ("K", "rule", "draws", "acceptance", "limit", "of limit", "tokens a call", "best tree", "speed-up")
    grid = Table(box=None, pad_edge=False)
    for head in heads:
        grid.add_column(head, justify="left" if head in ("rule", "draws", "best tree") else "right")
    before = None
    for rule in ranked(result):
        if before not in (None, rule.case.siblings):
            grid.add_row()
        before = rule.case.siblings
        most = f" of {rule.tokens_limit:.2f}" if rule.tokens_limit is not None else ""
        grid.add_row(
            str(rule.case.siblings),
            rule.case.rule,
            rule.case.draw,
            f"{rule.acceptance:.3f} ± {rule.acceptance_error:.3f}",
            f"{rule.limit:.3f}",
            f"{_share(rule):.1%}",
            f"{rule.tokens:.2f} ± {rule.tokens_error:.2f}{most}",
            shape(rule),
            f"{rule.plan.speedup:.2f} ± {rule.plan.error:.2f}",
        )
    return grid


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
        "of_limit": _share(rule),
        "tokens_per_call": rule.tokens,
        "tokens_per_call_error": _number(rule.tokens_error),
        "tokens_per_call_limit": rule.tokens_limit,
        "best_tree": shape(rule),
        "best_tree_tokens_per_call": plan.tokens,
        "speedup": plan.speedup,
        "speedup_error": _number(plan.error),
    }


def _share(rule: Measured) -> float:
    return rule.acceptance / rule.limit if rule.limit else 1.0


def _number(value: float) -> float | None:
    """None for NaN, which JSON lacks: an error is NaN after a single position."""
    return value if math.isfinite(value) else None


# The figure


def check_plot(path: Path) -> None:
    """Raise before the work begins if the plot cannot be written."""
    if path.suffix not in (".svg", ".png"):
        raise DraftproofError(f"a plot is a .svg or .png file, not {path.name!r}: rename it")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise DraftproofError("plots need matplotlib: install draftproof[theory]") from error
    check_writable(path, "the plot")


def plot(report: LimitReport, path: Path) -> None:
    """Plot acceptance over K with the limits, one panel per temperature."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "draftproof", "font.size": 9}):
        figure = Figure(figsize=(1.8 + 4.2 * len(report.results), 4.2), layout="constrained")
        panels = figure.subplots(1, len(report.results), sharey=True, squeeze=False)[0]
        for panel, result in zip(panels, report.results, strict=True):
            _panel(panel, result)
        panels[0].set_ylabel("acceptance of one of K guesses")
        figure.legend(*panels[-1].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panel(panel: Any, result: TemperatureResult) -> None:
    """Draw one line per rule over K, or a point for rules that take a single guess."""
    lines: dict[str, list[Measured]] = {}
    for rule in ranked(result):
        lines.setdefault(rule.case.rule, []).append(rule)
    widths = sorted({rule.case.siblings for rule in result.rules})
    for name, colour in (("iid", "black"), ("distinct", "grey")):
        limit = {r.case.siblings: r.limit for r in result.rules if r.case.draw == name}
        if limit:
            panel.plot(list(limit), list(limit.values()), color=colour, lw=2.5, ls="--", label=f"limit, {name} draws")
    for n, (name, rules) in enumerate(sorted(lines.items())):
        at = [rule.case.siblings for rule in rules]
        style = {"marker": "os^vD"[n % 5], "ms": 4, "lw": 1, "color": f"C{n % 10}", "ls": "-" if n < 10 else ":"}
        panel.plot(at, [rule.acceptance for rule in rules], label=name, **style)
    panel.set(xlabel="K", xticks=widths, title=f"temperature {result.temperature:g}")
    panel.grid(alpha=0.3)
