"""Render an audit's report as one self-contained HTML page, for phones and wide screens, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from draftproof.audit import chart
from draftproof.audit.report import TOO_FEW, Report

# Colours of the lines are those of Okabe and Ito, made darker or lighter until each has a contrast of 3:1 to the page
# (text 4.5:1); colour-blind readers can tell them apart.
STYLE = """
:root { color-scheme: light dark; --page: #fff; --panel: #f5f6f8; --text: #1c2128; --quiet: #57606a; --line: #d8dde3;
  --good: #00775a; --bad: #b84300; --alarm: #d55e00; --c1: #0072b2; --c2: #b26a00; --c3: #00855f; --c4: #b0478a }
@media (prefers-color-scheme: dark) { :root { --page: #14171c; --panel: #1e232a; --text: #e8ebef; --quiet: #a3adb9;
  --line: #39414b; --good: #3cc79c; --bad: #ff8f57; --alarm: #ff8f57; --c1: #56b4e9; --c2: #f0b23e; --c3: #3cc79c;
  --c4: #e79bc8 } }
* { box-sizing: border-box }
body { font: 1rem/1.55 system-ui, sans-serif; max-width: 76rem; margin: 0 auto;
  padding: 1rem clamp(1rem, 4vw, 3rem) 3rem;
  background: var(--page); color: var(--text); overflow-wrap: anywhere; -webkit-text-size-adjust: 100% }
h1 { font-size: clamp(1.35rem, 1rem + 2vw, 2rem); line-height: 1.25; margin: 1rem 0 }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem } p { margin: .5rem 0 } figure { margin: 2rem 0 0 }
figcaption, .note { color: var(--quiet); font-size: .9375rem } figcaption { margin-bottom: 1rem; max-width: 60rem }
.verdict { padding: .9rem 1.1rem; border-left: .4rem solid; border-radius: .3rem; background: var(--panel);
  font-size: 1.1rem }
.exact { border-color: var(--good) } .exact strong { color: var(--good) }
.wrong { border-color: var(--bad) } .wrong strong { color: var(--bad) }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 16rem), 1fr)); gap: 1rem 2rem;
  margin: .8rem 0 }
dt { color: var(--quiet); font-size: .875rem } dd { margin: 0 }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .4rem; margin: .8rem 0 }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--c1); outline-offset: 2px }
table { border-collapse: collapse; width: 100%; font-size: .9375rem; overflow-wrap: normal }
th, td { padding: .45rem .9rem; text-align: left; vertical-align: top; border-top: 1px solid var(--line) }
thead th { border-top: 0; background: var(--panel); white-space: nowrap; font-weight: 600 }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
.words { min-width: 13rem; overflow-wrap: anywhere } .token { white-space: pre } summary { cursor: pointer }
summary h2 { display: inline }
@media (max-width: 32rem) { th, td { padding: .4rem .55rem } thead th { vertical-align: bottom }
  thead th.number { white-space: normal } .words { min-width: 9rem } }
"""


def html(report: Report) -> str:
    """The whole page."""
    title = f"Audit of {report.target}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{escape(title)}</title><style>{STYLE}{chart.STYLE}</style></head>
<body><main>
<h1>{escape(title)}</h1>
{_verdict(report)}
<figure><figcaption>{_caption(report)}</figcaption>
{chart.chart(report)}</figure>
<section><h2>Audited</h2>{_facts(report)}</section>
<section><h2 id="faults">Smallest detectable faults</h2>{_faults(report)}</section>
{_worst(report)}
</main></body></html>
"""


def _caption(report: Report) -> str:
    """What the chart shows."""
    claim = "the engine is exact" if report.paired is None else "speculation changes nothing"
    each = "token" if report.paired is None else "pair of texts"
    return (
        f"Evidence against exactness, after each {each}. It starts at 1. If {claim}, it reaches the alarm at "
        f"{1 / report.alpha:g} with a probability of at most {report.alpha:g}, however long the audit. Below the chart "
        "is what each line ends with."
    )


def _verdict(report: Report) -> str:
    """The verdict's sentence, its first words in bold."""
    kind, rest = "exact" if report.exact else "wrong", report.verdict.removeprefix(report.headline)
    return f'<p class="verdict {kind}"><strong>{report.headline.capitalize()}</strong>{escape(rest)}</p>'


def _facts(report: Report) -> str:
    """The numbers of the audit as a list of names and values."""
    low, high = report.interval
    compared = (
        {"allowance for rounding": f"{report.tolerance:g} in total variation at each token"}
        if report.paired is None
        else {
            "compared with": f"{report.paired.plain_tokens:,} tokens of plain sampling",
            "pairs of texts": f"{report.paired.groups:,}",
            "texts left out": f"{report.paired.alone:,}",
        }
    )
    facts = {
        "target": report.target,
        "transcripts": f"{report.transcripts:,}",
        "tokens": f"{report.tokens:,}",
        "perplexity": f"{report.perplexity:.3g}",
        "level alpha": f"{report.alpha:g}",
        **compared,
        "strongest alternative": f"as if {report.lead}",
        "nats per token": f"{report.rate:+.2e} (95% interval {low:+.2e} to {high:+.2e})".replace("inf", "∞"),
        "impossible tokens": f"{report.impossible:,}",
        "tokens at a truncation's edge": f"{report.void:,}",
        "outputs retokenised": f"{report.retokenised:,}",
    }
    pairs = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f"<dl>{pairs}</dl>"


def _faults(report: Report) -> str:
    rows = [(says, f"{share:.2%}", f"{distance:.4f}") for share, distance, says in report.detectable]
    if not rows:
        return f"<p>{escape(TOO_FEW)}</p>"
    return f"""<p class="note">With this many tokens, faults of this size are detected nine times out of ten.</p>
{_table("faults", ("fault: as if ...", "share of tokens", "total variation"), ("words", "number", "number"), rows)}"""


def _worst(report: Report) -> str:
    """The tokens with most evidence; folded away where they mean nothing."""
    if not report.worst:
        return ""
    rows = [
        (
            f"{spot.gain:+.2f}".replace("inf", "∞"),
            f"{spot.line}",
            f"{spot.position}",
            f"{spot.chance:.2g}",
            before,
            token,
        )
        for spot, (before, token) in zip(report.worst, report.words, strict=True)
    ]
    kinds = ("number", "number", "number", "number", "words", "token")
    table = _table("worst", ("nats", "line", "position", "p", "text before", "token"), kinds, rows)
    heading = '<h2 id="worst">Tokens that added most to the evidence</h2>'
    if not report.exact:
        return f"<section>{heading}{table}</section>"
    note = "Without an alarm they are the largest of many small numbers, and mean nothing."
    return f'<section><details><summary>{heading}</summary><p class="note">{note}</p>{table}</details></section>'


def _table(label: str, head: Sequence[str], kinds: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls inside itself where the screen is narrow; `label` is the id of its heading."""

    def cells(tag: str, words: Sequence[str], scope: str = "") -> str:
        made = (f'<{tag}{scope} class="{kind}">{escape(word)}</{tag}>' for word, kind in zip(words, kinds, strict=True))
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(cells("td", row) for row in rows)
    title = cells("th", head, ' scope="col"')
    return f"""<div class="scroll" role="region" tabindex="0" aria-labelledby="{label}">
<table><thead>{title}</thead><tbody>{body}</tbody></table></div>"""
