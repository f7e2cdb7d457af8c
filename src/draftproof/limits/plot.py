"""Plot acceptance over K: a row of panels for each temperature, a column for each way of drawing with its own limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftproof.draws import DRAWS
from draftproof.errors import DraftproofError
from draftproof.limits import LimitReport, Measured
from draftproof.paths import check_writable

# Okabe and Ito: safe for colour-blind readers; markers tell lines apart without any colour
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKERS = "os^vDPX*<>"
SAME = 0.002  # acceptances that differ by less are one line


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
    """Write the figure. Rules are beside the limit of their own draws only: another one does not bind them."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    draws = [draw for draw in DRAWS if any(rule.case.draw == draw for rule in report.results[0].rules)]
    widths = sorted(report.settings.siblings)
    with rc_context({"svg.hashsalt": "draftproof", "svg.fonttype": "none", "font.size": 9}):
        rows, columns = len(report.results), len(draws)
        figure = Figure(figsize=(0.8 + 2.9 * columns, 1.6 + 2.6 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for column, draw in enumerate(draws):
            curves = [[rule for rule in result.rules if rule.case.draw == draw] for result in report.results]
            groups = _groups(curves)
            for panel, rules, result in zip(panels[:, column], curves, report.results, strict=True):
                _panel(panel, rules, groups, widths, f"limit of {draw} draws")
                panel.set_title(f"{draw} draws, temperature {result.temperature:g}", fontsize=9)
            panels[-1, column].set_xlabel("K candidates")
            panels[-1, column].legend(
                loc="upper center", bbox_to_anchor=(0.5, -0.22), fontsize=8, frameon=False, handlelength=2.6
            )
        for row in panels:
            row[0].set_ylabel("acceptance")
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panel(panel: Any, rules: list[Measured], groups: list[list[str]], widths: list[int], label: str) -> None:
    """Draw the limit of one way of drawing, and a line for each group of rules."""
    limit = {rule.case.siblings: rule.limit for rule in rules}
    places = [widths.index(K) for K in sorted(limit)]
    panel.plot(
        places, [limit[K] for K in sorted(limit)], color="0.6", lw=5, solid_capstyle="round", label=label, zorder=1
    )
    if len(places) == 1:  # a line of one point would not be seen
        panel.plot([places[0] - 0.15, places[0] + 0.15], [limit[widths[places[0]]]] * 2, color="0.6", lw=5, zorder=1)
    for n, names in enumerate(groups):
        line = {rule.case.siblings: rule.acceptance for rule in rules if rule.case.rule == names[0]}
        panel.plot(
            [widths.index(K) for K in sorted(line)],
            [line[K] for K in sorted(line)],
            color=COLOURS[n % len(COLOURS)],
            marker=MARKERS[n % len(MARKERS)],
            ms=5,
            lw=1.2,
            ls="-" if n < len(COLOURS) else ":",
            label=", ".join(names),
            zorder=2,
        )
    panel.set_xticks(range(len(widths)), list(map(str, widths)))
    panel.set_xlim(-0.35, len(widths) - 0.65)
    panel.grid(alpha=0.25)


def _groups(curves: list[list[Measured]]) -> list[list[str]]:
    """Names of rules whose acceptance is the same at every K and temperature, best first; each group is one line."""
    points: dict[str, dict[tuple[int, int], float]] = {}
    for number, rules in enumerate(curves):
        for rule in rules:
            points.setdefault(rule.case.rule, {})[number, rule.case.siblings] = rule.acceptance
    groups: list[list[str]] = []
    for name in sorted(points, key=lambda name: -sum(points[name].values()) / len(points[name])):
        for group in groups:
            first = points[group[0]]
            if first.keys() == points[name].keys() and all(abs(first[k] - v) < SAME for k, v in points[name].items()):
                group.append(name)
                break
        else:
            groups.append([name])
    return groups
