"""`draftproof list`: all rules, drafters and targets by name."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

WIDE = 200  # columns that the table needs


def list_rules(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List all rules with paper, draws they are exact for, and trees they take; then drafters and targets."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table

    rows = _rules()
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    console = Console(width=None if sys.stdout.isatty() else WIDE, highlight=False, markup=False)
    heads = ("name", "kind", "paper", "draws", "trees", "what it does")
    cells = [[", ".join(cell) if isinstance(cell, list) else cell for cell in row.values()] for row in rows]
    if console.width >= WIDE:
        table = Table(*heads, box=None, pad_edge=False)
        for row in cells:
            table.add_row(*row)
        console.print(table)
        return
    for name, kind, *facts, summary in cells:  # columns this narrow would cut names
        console.print(name, style="bold")
        about = [kind, *(f"{head} {fact}" for head, fact in zip(heads[2:], facts, strict=False) if fact)]
        console.print(Padding(f"{'; '.join(about)}\n{summary}", (0, 0, 0, 2)))


def _rules() -> list[dict[str, Any]]:
    from draftproof.couple import COUPLINGS
    from draftproof.lossy import LOSSY
    from draftproof.models import DRAFTERS, NAMES
    from draftproof.verify import VERIFIERS

    def row(rule: Any, kind: str, draws: list[str], trees: str) -> dict[str, Any]:
        papers = ", ".join(f"arXiv {p}" if p[:1].isdigit() else p for p in rule.paper.split(", "))
        described = {"name": rule.name, "kind": kind, "paper": papers}
        return {**described, "draws": draws, "trees": trees, "summary": rule.summary}

    def named(kind: str, names: dict[str, str]) -> list[dict[str, Any]]:
        bare = {"kind": kind, "paper": "", "draws": [], "trees": ""}
        return [{"name": name, **bare, "summary": summary} for name, summary in names.items()]

    exact = [row(rule, "exact", sorted(rule.draws), rule.trees) for rule in VERIFIERS.values()]
    shared = [row(rule, "exact, shared noise", ["its own"], "any") for rule in COUPLINGS.values()]
    lossy = [row(rule, "not exact", ["iid"], "chain") for rule in LOSSY.values()]
    return exact + shared + lossy + named("drafter", DRAFTERS) + named("target", NAMES)
