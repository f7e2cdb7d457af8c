"""Render an audit's report as one self-contained HTML page, with the evidence as an inline SVG curve."""

from __future__ import annotations

import math
from html import escape

from draftproof.audit.report import TOO_FEW, Report, power_of_ten

WIDTH, HEIGHT, LEFT, BOTTOM = 760, 320, 60, 34
LINES = 4  # families drawn besides the total evidence
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")  # Okabe and Ito: safe for colour-blind readers
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; color: #222 }
.verdict { padding: .7em 1em; border-left: .4em solid; background: #f4f4f4; font-size: 1.15em }
.exact { border-color: #009e73 } .wrong { border-color: #d55e00 }
table { border-collapse: collapse; margin: 1em 0 } td, th { padding: .2em .9em .2em 0; text-align: left }
td.number { text-align: right; font-variant-numeric: tabular-nums } code { white-space: pre-wrap; background: #f4f4f4 }
svg text { font: 12px system-ui, sans-serif; fill: #444 }
"""


def html(report: Report) -> str:
    """The whole page."""
    low, high = report.interval
    facts = {
        "target": report.target,
        "transcripts": f"{report.transcripts}",
        "tokens": f"{report.tokens}",
        "perplexity": f"{report.perplexity:.3g}",
        "level alpha": f"{report.alpha:g}",
        "allowance for rounding": f"{report.tolerance:g} in total variation at each token",
        "strongest alternative": f"{report.lead}",
        "nats per token": f"{report.rate:+.2e} (95% interval {low:+.2e} to {high:+.2e})",
        "impossible tokens": f"{report.impossible}",
        "tokens at a truncation's edge": f"{report.void}",
        "outputs retokenised": f"{report.retokenised}",
    }
    shown = [p for p in report.power if p.share <= 1]
    power = _table(
        ("share of tokens", "total variation", "fault"),
        [(f"{p.share:.2%}", f"{p.total_variation:.4f}", p.says) for p in shown] or [("", "", TOO_FEW)],
    )
    worst = _table(
        ("nats", "line", "position", "p", "text before", "token"),
        [
            (f"{s.gain:+.2f}", f"{s.line}", f"{s.position}", f"{s.chance:.2g}", before, token)
            for s, (before, token) in zip(report.worst, report.words, strict=True)
        ],
    )
    kind = "exact" if report.exact else "wrong"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Audit of {escape(report.target)}</title><style>{STYLE}</style></head>
<body><h1>Audit</h1><p class="verdict {kind}">{escape(report.verdict)}</p>
{curve(report)}
{_table((), list(facts.items()))}
<h2>Smallest detectable faults</h2>
<p>Faults of this size are detected nine times out of ten with this many tokens.</p>
{power}
<h2>Tokens that added most to the evidence</h2>
{worst}
</body></html>
"""


def curve(report: Report) -> str:
    """Plot the evidence over tokens, in powers of ten: all bets together, the best families, and the alarm level."""
    alarm = math.log10(1 / report.alpha)
    points = report.curve
    best = sorted(range(len(report.families)), key=lambda f: -points[-1][2][f])[:LINES]
    lines = [("all bets together", "#000", [(n, evidence) for n, evidence, _ in points])]
    lines += [
        (report.families[f], COLOURS[i], [(n, families[f]) for n, _, families in points]) for i, f in enumerate(best)
    ]
    tens = [
        (name, colour, [(n, log / math.log(10)) for n, log in line if math.isfinite(log)])
        for name, colour, line in lines
    ]
    top = max(alarm * 1.3, *(y for _, _, line in tens for _, y in line))
    low = max(min(0.0, *(y for _, _, line in tens for _, y in line)), -top)
    end = max(points[-1][0], 1)

    def x(n: float) -> float:
        return LEFT + (WIDTH - LEFT - 10) * n / end

    def y(value: float) -> float:
        return 10 + (HEIGHT - BOTTOM - 10) * (top - max(value, low)) / (top - low)

    parts = [
        f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="{c}" stroke-dasharray="{dash}"/>'
        f'<text x="{LEFT - 6}" y="{y(v) + 4:.1f}" text-anchor="end">{words}</text>'
        for v, c, dash, words in ((0.0, "#bbb", "none", "1"), (alarm, "#d55e00", "5 4", power_of_ten(alarm * 2.302585)))
    ]
    for i, (name, colour, line) in enumerate(tens):
        path = " ".join(f"{x(n):.1f},{y(v):.1f}" for n, v in line)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{2.5 if i == 0 else 1.2}"/>'
        )
        parts.append(f'<text x="{LEFT + 12}" y="{26 + 16 * i}" style="fill:{colour}">{escape(name)}</text>')
    parts.append(f'<text x="{WIDTH - 10}" y="{HEIGHT - 8}" text-anchor="end">{end} tokens</text>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 8}">evidence (powers of ten); dashed: alarm</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="evidence">{"".join(parts)}</svg>'


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    title = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(_cell(cell, bool(head)) for cell in row)}</tr>" for row in rows)
    return f"<table>{f'<tr>{title}</tr>' if head else ''}{body}</table>"


def _cell(words: str, aligned: bool) -> str:
    number = aligned and words.strip("+-%").replace(".", "", 1).replace("e-", "", 1).isdigit()
    kind = ' class="number"' if number else ""
    return f"<td{kind}>{escape(words)}</td>"
