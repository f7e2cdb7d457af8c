"""`draftproof distill`: a drafter for any target, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.commands.shared import Raw

if TYPE_CHECKING:
    from draftproof.distill.evaluate import Quality


def distill(
    out: Annotated[Path, typer.Option(help="Folder of the run and of the finished drafter.")],
    target: Annotated[str, typer.Option(help="smollm2, a folder, a .gguf file or a Hub id.")] = "smollm2",
    kind: Annotated[str, typer.Option(help="head: reads the target's hidden states; model: stands alone.")] = "head",
    data: Annotated[
        list[str] | None,
        typer.Option(help="Prompts: a .txt or .jsonl file, or self; several times, for equal shares."),
    ] = None,
    held: Annotated[str, typer.Option(help="Prompts to evaluate on; by default every 20th of the data.")] = "",
    minutes: Annotated[float | None, typer.Option(help="For text and training together; 20 by default.")] = None,
    shards: Annotated[int | None, typer.Option(help="Amount of text, instead of minutes.")] = None,
    steps: Annotated[int | None, typer.Option(help="Amount of training, instead of minutes.")] = None,
    rows: Annotated[int, typer.Option(help="Rows of text in a shard: as many as the memory holds at once.")] = 256,
    held_rows: Annotated[int, typer.Option(help="Rows of text to evaluate on, for each temperature.")] = 64,
    length: Annotated[int, typer.Option(help="Tokens in a row of text.")] = 513,
    batch: Annotated[int, typer.Option(help="Rows in a step of training.")] = 32,
    rate: Annotated[float, typer.Option(help="Learning rate.")] = 3e-3,
    vocabulary: Annotated[int, typer.Option(help="Tokens that a head can guess: the frequent ones.")] = 8192,
    layers: Annotated[int | None, typer.Option(help="1 for a head, 6 for a model, or as --from has.")] = None,
    width: Annotated[int, typer.Option(help="Of a model.")] = 96,
    unroll: Annotated[int, typer.Option(help="Steps of its own that a head is trained for.")] = 4,
    seed: Annotated[int, typer.Option(help="The same seed gives the same drafter.")] = 0,
    begin: Annotated[str, typer.Option("--from", help="A drafter of the same kind to go on from.")] = "",
    text: Annotated[Path | None, typer.Option(help="Folder of text, to share it between runs.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of the target; bfloat16 on a GPU, else float32.")] = None,
    raw: Raw = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Train a drafter for a target, on text that the target writes. A killed run goes on where it was."""
    import torch

    from draftproof.distill import evaluate
    from draftproof.distill.job import Job
    from draftproof.distill.run import distil
    from draftproof.models import load
    from draftproof.noise import check_seed

    job = Job(
        kind=kind,
        data=tuple(data or ["self"]),
        held=held,
        minutes=minutes,
        shards=shards,
        steps=steps,
        rows=rows,
        held_rows=held_rows,
        length=length,
        batch=batch,
        rate=rate,
        vocabulary=vocabulary,
        layers=layers,
        width=width,
        unroll=unroll,
        seed=check_seed(seed),
        chat=not raw,
        begin=begin,
    ).check()
    precision = dtype or ("bfloat16" if torch.cuda.is_available() else "float32")
    model = load(target, dtype=precision, lean=False)  # transformers' own reads long texts faster
    with Bars() as bars:
        found = distil(model, target, out, job, bars.report, text)
    if as_json:
        typer.echo(json.dumps([one._asdict() for one in found], indent=1))
    else:
        show(found)
    try:
        evaluate.plot(found, out / "evaluation.svg")
    except ImportError:
        typer.echo("no plot: install draftproof[theory]", err=True)


class Bars:
    """A progress bar with the time left for each stage, on standard error."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self.bars = Progress(*columns, TextColumn("{task.fields[remark]}"), console=Console(stderr=True))
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> Bars:
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def report(self, stage: str, share: float, remark: str) -> None:
        if stage not in self.tasks:
            self.tasks[stage] = self.bars.add_task(stage, total=1.0, remark="")
        self.bars.update(self.tasks[stage], completed=share, remark=remark)


def show(found: list[Quality]) -> None:
    """The evaluation as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in (
        "temperature",
        "overlap by guess",
        "in reach",
        "tokens a call by chain",
        "limit",
        "in an engine",
        "tree of 20",
    ):
        table.add_column(column)
    for one in found:
        lists = [" ".join(f"{value:.3f}" for value in part) for part in (one.overlap, one.tokens)]
        rest = [f"{value:.3f}" for value in (one.limit[-1], one.engine, one.tree_of_20)]
        table.add_row(f"{one.temperature:g}", lists[0], f"{one.reach:.3f}", lists[1], *rest)
    Console(width=None if Console().is_terminal else 140, highlight=False).print(table)
