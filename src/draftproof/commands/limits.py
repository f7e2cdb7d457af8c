"""`draftproof limits`: measure every rule on your models and prompts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from draftproof.commands.options import numbers
from draftproof.commands.shared import AnyTarget, Device, Precision, Raw
from draftproof.errors import DraftproofError


def limits(
    target: AnyTarget = "smollm2",
    draft: Annotated[str, typer.Option(help="head, ngram or a model.")] = "ngram",
    prompts: Annotated[Path | None, typer.Option(help="A .txt file, one prompt per line, or a .jsonl file.")] = None,
    k: Annotated[str, typer.Option("--k", help="Numbers of candidates per token, separated by commas.")] = "1,2,4",
    temperature: Annotated[str, typer.Option(help="One or several, separated by commas.")] = "1.0",
    tokens: Annotated[int, typer.Option(help="Length of the text per prompt.")] = 24,
    length: Annotated[int, typer.Option(help="Length of the drafted paths.")] = 4,
    draft_top_k: Annotated[int, typer.Option(help="The drafter draws from its k likeliest tokens; 0 is all.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of texts and draft tokens.")] = 0,
    dtype: Precision = "float32",
    device: Device = "auto",
    raw: Raw = False,
    plot: Annotated[Path | None, typer.Option(help="Plot acceptance over K to a .svg or .png file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Measure how good each rule is on your models and prompts, how good it could be, and which one to use."""
    from rich.console import Console
    from rich.progress import Progress

    from draftproof.limits import CommandNames, LimitSettings, measure, report
    from draftproof.limits.advice import advice, draft_temperature
    from draftproof.limits.plot import check_plot
    from draftproof.limits.plot import plot as draw
    from draftproof.models import check_drafters, drafter, load
    from draftproof.noise import check_seed
    from draftproof.prompts import PROMPTS, read

    sizes = numbers(k, int, "k"), numbers(temperature, float, "temperature")
    settings = LimitSettings(*sizes, tokens, length, draft_top_k, check_seed(seed), chat=not raw).check()
    if plot is not None:
        check_plot(plot)
    if draft == "none":
        raise DraftproofError(f"--draft none finds no drafter for {target!r}: name one, such as ngram")
    texts = list(PROMPTS) if prompts is None else read(prompts)
    check_drafters(draft)
    model = load(target, dtype=dtype, device=device)
    guesser = drafter(draft, model)
    if guesser is None:
        raise DraftproofError(f"--draft {draft} finds no drafter for {target!r}: name one, such as ngram")
    options = ([] if dtype == "float32" else ["--dtype", dtype]) + ["--raw"] * raw
    names = CommandNames(target, draft, tuple(options))
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=len(texts) * tokens * len(sizes[1]))
        measured = measure(model, guesser, texts, settings, lambda: bar.advance(task), names)
    if plot is not None:
        draw(measured, plot)
    if as_json:
        typer.echo(json.dumps(report.as_dict(measured), indent=1))
        return
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    for result in measured.results:
        console.print(f"{report.heading(result, len(texts))}\n")
        console.print(report.table(result, console.width))
        console.print("\n" + "\n".join(report.notes(result)))
        if hint := draft_temperature(result):
            console.print(f"\n{hint}")
        console.print(f"\n{advice(measured, result)}\n", soft_wrap=True)
    console.print(report.clock(measured))
