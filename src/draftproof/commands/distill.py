"""`draftproof distill`: train a drafter for any target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.commands.shared import Device, Raw, precision_option

if TYPE_CHECKING:
    from draftproof.distill.evaluate import Quality


def distill(
    out: Annotated[Path, typer.Option(help="Folder for the run and the finished drafter.")],
    target: Annotated[str, typer.Option(help="smollm2, tiny, a folder, a .gguf file or a Hub id.")] = "smollm2",
    kind: Annotated[
        str, typer.Option(help="head: reads the target's hidden states; model: a small model of its own.")
    ] = "head",
    data: Annotated[
        list[str] | None,
        typer.Option(help="Prompts: a .txt or .jsonl file, or self; may be repeated, for equal shares."),
    ] = None,
    held: Annotated[str, typer.Option(help="Prompts to evaluate on; by default every 20th of the data.")] = "",
    minutes: Annotated[float | None, typer.Option(help="Time for text and training together; 20 by default.")] = None,
    shards: Annotated[int | None, typer.Option(help="Number of shards of text, instead of minutes.")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of training steps, instead of minutes.")] = None,
    rows: Annotated[int, typer.Option(help="Rows of text per shard: as many as fit into memory at once.")] = 256,
    held_rows: Annotated[int, typer.Option(help="Rows of text to evaluate on, per temperature.")] = 64,
    length: Annotated[int, typer.Option(help="Tokens per row of text.")] = 513,
    batch: Annotated[int, typer.Option(help="Rows per training step.")] = 32,
    rate: Annotated[float, typer.Option(help="Learning rate.")] = 3e-3,
    vocabulary: Annotated[int, typer.Option(help="Number of tokens a head can draft: the most frequent ones.")] = 8192,
    layers: Annotated[
        int | None, typer.Option(help="Number of layers; by default 1 for a head, 6 for a model, or those of --from.")
    ] = None,
    width: Annotated[int, typer.Option(help="Width of a model.")] = 96,
    unroll: Annotated[int, typer.Option(help="Draft steps in a row that a head is trained for.")] = 4,
    seed: Annotated[int, typer.Option(help="The same seed gives the same drafter.")] = 0,
    begin: Annotated[str, typer.Option("--from", help="A drafter of the same kind to start from.")] = "",
    text: Annotated[Path | None, typer.Option(help="Folder for the text, to share it between runs.")] = None,
    dtype: Annotated[str | None, precision_option("Precision of the target; bfloat16 on a GPU, else float32.")] = None,
    device: Device = "auto",
    raw: Raw = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Train a drafter for a target on text that the target writes. An interrupted run resumes when restarted."""
    from rich.console import Console

    from draftproof.commands.progress import stages
    from draftproof.distill import evaluate
    from draftproof.distill.job import Job
    from draftproof.distill.run import distil
    from draftproof.models import load
    from draftproof.models.devices import choose_device
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
    place = choose_device(device, dtype or "float32")
    precision = dtype or ("bfloat16" if place.startswith("cuda") else "float32")
    model = load(target, dtype=precision, device=place, lean=False)  # transformers' own network is faster on long texts
    with stages(Console(stderr=True)) as report:
        qualities = distil(model, target, out, job, report, text)
    if as_json:
        typer.echo(json.dumps([quality._asdict() for quality in qualities], indent=1))
    else:
        show(qualities)
    try:
        evaluate.plot(qualities, out / "evaluation.svg")
    except ImportError:
        typer.echo("no plot: install draftproof[theory]", err=True)


def show(qualities: list[Quality]) -> None:
    """Print the evaluation as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in (
        "temperature",
        "overlap by position",
        "in reach",
        "tokens a call by chain",
        "limit",
        "in the engine",
        "tree of 20",
    ):
        table.add_column(column)
    for quality in qualities:
        lists = [" ".join(f"{value:.3f}" for value in part) for part in (quality.overlap, quality.tokens)]
        rest = [f"{value:.3f}" for value in (quality.limit[-1], quality.engine, quality.tree_of_20)]
        table.add_row(f"{quality.temperature:g}", lists[0], f"{quality.reach:.3f}", lists[1], *rest)
    Console(width=None if Console().is_terminal else 140, highlight=False).print(table)
