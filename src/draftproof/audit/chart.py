"""The evidence over tokens as an inline SVG: curves that stretch to any width, beside labels that keep their size.

The SVG has no text: it is stretched to the box, and stretched letters would be unreadable on a phone. Ticks and legend
are HTML beside it, placed in percent of the box.
"""

from __future__ import annotations

import math
from html import escape
from typing import NamedTuple

from draftproof.audit.report import Report, power_of_ten

LINES = 4  # families drawn besides the total evidence
DASHES = ("", "", "18 5", "3 4", "12 4 3 4")  # of the lines in this order: no line is told by its colour alone
TICKS = 5  # at most, on each axis
STILL = 1e-9  # log evidence that is zero but for rounding
ROOM = 0.06  # of the height: closer labels would overlap
PHONE = 0.55  # of the width of a phone: there the last label begins, which says "12,345 tokens"
STYLE = """
.chart { display: grid; grid-template-columns: max-content 1fr; column-gap: .5rem; font-size: .8125rem }
.chart .y { position: relative; min-width: 3.2em; color: var(--quiet) }
.chart .y span { position: absolute; right: 0; transform: translateY(-50%); white-space: nowrap }
.chart sup, .legend sup { font-size: .75em; line-height: 0 }
.chart svg { width: 100%; height: clamp(13rem, 38vw, 24rem); display: block; overflow: visible }
.chart .x { grid-column: 2; position: relative; height: 1.6em; margin-top: .3em; color: var(--quiet) }
.chart .x span { position: absolute; transform: translateX(-50%); white-space: nowrap }
.chart .x span.end { transform: translateX(-100%) }
.chart .x span:first-child { transform: none }
@media (max-width: 32rem) { .chart .x span:nth-child(even):not(.end), .chart .x span.late { display: none } }
svg line, svg polyline { vector-effect: non-scaling-stroke; fill: none }
.grid { stroke: var(--line) } .alarm { stroke: var(--alarm); stroke-width: 2; stroke-dasharray: 6 5 }
.l0 { stroke: var(--text); stroke-width: 3 } .l1 { stroke: var(--c1) } .l2 { stroke: var(--c2) }
.l3 { stroke: var(--c3) } .l4 { stroke: var(--c4) } .l1, .l2, .l3, .l4 { stroke-width: 1.8 }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .35rem 1.5rem; padding: 0; margin: .9rem 0 0 }
.legend li { display: flex; align-items: center; gap: .5rem; font-size: .875rem }
.legend svg { flex: none; width: 2.4rem; height: .75rem }
"""


class Line(NamedTuple):
    """One curve: what it is called, and its points (tokens, evidence in powers of ten, infinite at the end)."""

    name: str
    points: list[tuple[int, float]]


def chart(report: Report) -> str:
    """The figure: all bets together, the families that won most, and the alarm level."""
    lines, alarm = _lines(report), math.log10(1 / report.alpha)
    finite = [value for line in lines for _, value in line.points if math.isfinite(value)]
    top = max(alarm * 1.25, max(finite) * 1.05)
    low = max(min(0.0, *finite), -top)
    end = max(report.curve[-1][0], 1)

    def x(tokens: float) -> float:
        return 1000 * tokens / end

    def y(value: float) -> float:
        return 400 * (top - min(max(value, low), top)) / (top - low)

    ticks = [tick for tick in _ticks(low, top) if abs(tick - alarm) > ROOM * (top - low)]
    drawn = [_level("grid", y(tick)) for tick in ticks] + [_level("alarm", y(alarm))]
    for n, line in reversed(list(enumerate(lines))):  # the total is drawn last, above the others
        points = " ".join(f"{x(tokens):.1f},{y(value):.1f}" for tokens, value in line.points)
        drawn.append(f'<polyline class="l{n}" stroke-dasharray="{DASHES[n] or "none"}" points="{points}"/>')
    left = "".join(f'<span style="top:{y(value) / 4:.2f}%">{_power(value)}</span>' for value in (*ticks, alarm))
    below = "".join(
        f'<span{" class=late" if n > PHONE * end else ""} style="left:{x(n) / 10:.2f}%">{n:,}</span>'
        for n in _token_ticks(end)
    )
    said = f"Evidence after {end:,} tokens: {power_of_ten(report.final)}, alarm at {1 / report.alpha:g}"
    return f"""<div class="chart"><div class="y" aria-hidden="true">{left}</div>
<svg viewBox="0 0 1000 400" preserveAspectRatio="none" role="img" aria-label="{escape(said)}">{"".join(drawn)}</svg>
<div class="x" aria-hidden="true">{below}<span class="end" style="left:100%">{end:,} tokens</span></div></div>
<ul class="legend">{_legend(report, lines)}</ul>"""


def _lines(report: Report) -> list[Line]:
    """The total, and the families with most evidence at the end; those that never bet anything are left out."""
    curve = report.curve
    moved = [f for f in range(len(report.families)) if any(abs(families[f]) > STILL for _, _, families in curve)]
    best = sorted(moved, key=lambda f: -curve[-1][2][f])[:LINES]
    lines = [Line("all bets together", [(n, total / math.log(10)) for n, total, _ in curve])]
    return lines + [
        Line(report.families[f], [(n, families[f] / math.log(10)) for n, _, families in curve]) for f in best
    ]


def _legend(report: Report, lines: list[Line]) -> str:
    """Each line beside a piece of it, and the evidence it ends with."""
    items = []
    for n, line in enumerate(lines):
        piece = f'<line class="l{n}" stroke-dasharray="{DASHES[n] or "none"}" x1="0" x2="48" y1="6" y2="6"/>'
        last = power_of_ten(line.points[-1][1] * math.log(10))
        items.append((piece, f"{escape(line.name)}: {_raised(last)}"))
    items.append((_level("alarm", 6), f"alarm at {_raised(power_of_ten(-math.log(report.alpha)))}"))
    return "".join(
        f'<li><svg viewBox="0 0 48 12" aria-hidden="true">{piece}</svg><span>{words}</span></li>'
        for piece, words in items
    )


def _level(kind: str, y: float) -> str:
    return f'<line class="{kind}" x1="0" x2="1000" y1="{y:.1f}" y2="{y:.1f}"/>'


def _ticks(low: float, top: float) -> list[int]:
    """Whole powers of ten at even steps, 0 among them."""
    step = _step((top - low) / TICKS)
    return [n * step for n in range(math.ceil(low / step), math.floor(top / step) + 1)]


def _token_ticks(end: int) -> list[int]:
    """Round numbers of tokens, none of them near the end, which has a label of its own."""
    step = _step(end / TICKS)
    return [n for n in range(0, end, step) if n < 0.8 * end]


def _step(least: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50, ... that is not below `least`."""
    size = int(10 ** math.floor(math.log10(max(least, 1))))
    return next(step for step in (size, 2 * size, 5 * size, 10 * size) if step >= least)


def _power(tens: float) -> str:
    """A power of ten as HTML: 0.01, 1, 100 in full, larger and smaller ones with an exponent."""
    return f"{10**tens:.3g}" if abs(tens) < 3 else _raised(f"10^{tens:.0f}")


def _raised(words: str) -> str:
    """A number such as 10^-5 as HTML."""
    base, _, exponent = words.partition("^")
    return f"{base}<sup>{exponent.replace('-', '−')}</sup>" if exponent else escape(words)
