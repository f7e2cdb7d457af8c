"""`draftproof limits`: every rule on your models and prompts, from the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from draftproof.commands.options import numbers
from draftproof.commands.shared import AnyTarget, Precision, Raw
from draftproof.errors import DraftproofError


def limits(
    target: AnyTarget = "smollm2",
    draft: Annotated[str, typer.Option(help="head, ngram or a model.")] = "ngram",
    prompts: Annotated[Path | None, typer.Option(help="A .txt file, one prompt a line, or a .jsonl file.")] = None,
    k: Annotated[str, typer.Option("--k", help="Numbers of guesses for a token, with commas.")] = "1,2,4",
    temperature: Annotated[str, typer.Option(help="One or several, with commas.")] = "1.0",
    tokens: Annotated[int, typer.Option(help="Length of the text for each prompt.")] = 24,
    length: Annotated[int, typer.Option(help="Length of the paths that are guessed.")] = 4,
    draft_top_k: Annotated[int, typer.Option(help="The drafter draws from so many tokens; 0 is all.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of texts and guesses.")] = 0,
    dtype: Precision = "float32",
    raw: Raw = False,
    plot: Annotated[Path | None, typer.Option(help="Draw acceptance against K: a .svg or .png file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """How good each algorithm is on your models and prompts, how good it could be, and which one to use."""
    from rich.console import Console
    from rich.progress import Progress

    from draftproof.limits import Settings, measure, report
    from draftproof.models import drafter, load
    from draftproof.noise import check_seed
    from draftproof.prompts import PROMPTS, read

    sizes = numbers(k, int, "k"), numbers(temperature, float, "temperature")
    settings = Settings(*sizes, tokens, length, draft_top_k, check_seed(seed), chat=not raw).check()
    if plot is not None:
        report.check_plot(plot)
    texts = list(PROMPTS) if prompts is None else read(prompts)
    model = load(target, dtype=dtype)
    guesser = drafter(draft, model)
    if guesser is None:
        raise DraftproofError(f"--draft {draft} finds no drafter for {target!r}: name one, such as ngram")
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=len(texts) * tokens * len(sizes[1]))
        found = measure(model, guesser, texts, settings, lambda: bar.advance(task))
    if plot is not None:
        report.plot(found, plot)
    if as_json:
        typer.echo(json.dumps(report.as_dict(found), indent=1))
        return
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    for result in found.results:
        console.print(f"temperature {result.temperature:g}, {result.positions} positions of {len(texts)} texts\n")
        console.print(report.table(result))
        console.print(f"\n{report.hotter(result)}\n{report.advice(found, result)}\n")
    console.print(report.clock(found))
