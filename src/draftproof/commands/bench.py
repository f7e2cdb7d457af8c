"""The command line of the benchmarks: draftproof bench engine, samples, demo, kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.commands.options import numbers
from draftproof.commands.shared import AnyTarget, Device, precision_option
from draftproof.paths import check_writable

if TYPE_CHECKING:
    from draftproof.bench.demo import Speeds
    from draftproof.models.base import Model
    from draftproof.models.hf import HFModel

app = typer.Typer(help="Compare speed with transformers, all engines in the same run.", no_args_is_help=True)

DraftOption = Annotated[str, typer.Option(help="auto, head, ngram, a model, text:MODEL, or none.")]
PromptsOption = Annotated[
    Path | None, typer.Option(help="A .txt or .jsonl file of prompts; a few built-in ones by default.")
]
By = Annotated[str | None, typer.Option(help="Field of the prompts' file whose values are measured separately.")]
TemperaturesOption = Annotated[list[str], typer.Option(help="One or several, such as 0.8,1.0; may be repeated.")]
Verify = Annotated[
    str, typer.Option(help="Rules of `draftproof list`, such as token,block; auto is block, or what the tree needs.")
]
TreeOption = Annotated[
    str, typer.Option("--tree", help="Draft tree: chain:5, star:4, paths:4x5, of:3x2x1, best:20x5 or auto.")
]
Tokens = Annotated[int, typer.Option("--tokens", "-n", help="Length of each text.")]
Repeat = Annotated[int, typer.Option(help="Number of rounds, each with different prompts.")]
Seed = Annotated[int, typer.Option(help="Seed of the first round; later rounds count up from it.")]
PrecisionOption = Annotated[
    str, precision_option("Precision of the weights; beside int8, transformers runs in float32.")
]
Inflate = Annotated[str | None, typer.Option(help="Give the target the cost of a larger model, such as 8b.")]
Blur = Annotated[float, typer.Option(help="Share of noise in the drafter's weights, to lower its acceptance rate.")]
Compiled = Annotated[bool, typer.Option("--compile", help="Compile our models on a GPU, transformers' on a CPU.")]
Json = Annotated[Path | None, typer.Option("--json", help="Append the rows to this file.")]


@app.command()
def engine(
    target: AnyTarget = "smollm2",
    draft: DraftOption = "ngram",
    prompts: PromptsOption = None,
    by: By = None,
    temperature: TemperaturesOption = ["1.0"],  # noqa: B006
    batch: Annotated[str, typer.Option(help="Batch sizes, such as 1,8,32.")] = "1",
    verify: Verify = "auto",
    tree: TreeOption = "auto",
    tokens: Tokens = 64,
    repeat: Repeat = 5,
    seed: Seed = 0,
    dtype: PrecisionOption = "float32",
    device: Device = "auto",
    compiled: Compiled = False,
    inflate: Inflate = None,
    blur: Blur = 0.0,
    only: Annotated[
        str, typer.Option(help="Measure only engines whose names contain one of these, such as draftproof,static.")
    ] = "",
    json: Json = None,
) -> None:
    """Compare plain and speculative sampling with transformers' plain, static and assisted generation."""
    from draftproof.bench import engine as bench
    from draftproof.models.devices import choose_device

    place = choose_device(device, dtype)
    options = _options(verify, tree, temperature, batch, tokens, repeat, seed, place, compiled, only)
    _report(bench.measure, (target, draft, dtype, inflate, blur, place), prompts, by, options, json)


@app.command()
def samples(
    target: AnyTarget = "smollm2",
    draft: DraftOption = "none",
    prompts: PromptsOption = None,
    by: By = None,
    temperature: TemperaturesOption = ["1.0"],  # noqa: B006
    batch: Annotated[str, typer.Option(help="Samples per prompt, such as 8,32.")] = "32",
    verify: Verify = "auto",
    tree: TreeOption = "chain:5",
    tokens: Tokens = 64,
    repeat: Repeat = 3,
    seed: Seed = 0,
    dtype: PrecisionOption = "float32",
    device: Device = "auto",
    compiled: Compiled = False,
    inflate: Inflate = None,
    blur: Blur = 0.0,
    json: Json = None,
) -> None:
    """Draw many samples of one prompt: one by one, as a batch, and as a batch with transformers."""
    from draftproof.bench import samples as bench
    from draftproof.models.devices import choose_device

    place = choose_device(device, dtype)
    options = _options(verify, tree, temperature, batch, tokens, repeat, seed, place, compiled)
    _report(bench.measure, (target, draft, dtype, inflate, blur, place), prompts, by, options, json)


@app.command()
def demo(
    target: AnyTarget = "smollm2",
    draft: DraftOption = "auto",
    prompts: PromptsOption = None,
    by: By = None,
    temperature: TemperaturesOption = ["0.8"],  # noqa: B006
    verify: Verify = "auto",
    tree: TreeOption = "auto",
    tokens: Tokens = 64,
    repeat: Repeat = 5,
    seed: Seed = 0,
    dtype: PrecisionOption = "int8",
    device: Device = "auto",
    json: Json = None,
) -> None:
    """Compare the default draft with plain sampling and with transformers' float32 generate."""
    from draftproof.bench import demo as bench
    from draftproof.models.devices import choose_device

    place = choose_device(device, dtype)
    options = _options(verify, tree, temperature, "1", tokens, repeat, seed, place)
    _report(bench.measure, (target, draft, dtype, None, 0.0, place), prompts, by, options, json)


@app.command()
def kernels(
    vocabulary: Annotated[str, typer.Option(help="Vocabulary sizes.")] = "32000,128256,151936",
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "1,8,64,256",
    mode: Annotated[
        str, typer.Option(help="Sampling controls: temp, topk_topp, topp, minp.")
    ] = "temp,topk_topp,topp,minp",
    peers: Annotated[
        bool, typer.Option(help="Also time PyTorch, and vLLM and FlashInfer where they are installed.")
    ] = True,
    check: Annotated[bool, typer.Option(help="Also compare with the exact laws, and test two million draws.")] = True,
    json: Json = None,
) -> None:
    """Time fused verification on a GPU, beside its memory floor and its peers."""

    if json is not None:
        check_writable(json, "rows")
    from draftproof.bench import kernels as bench

    sizes, batches = numbers(vocabulary, int, "vocabulary"), numbers(batch, int, "batch")
    typer.echo(bench.table(bench.run(sizes, batches, mode.split(","), peers, check, json)))


def _options(
    verify: str,
    tree: str,
    temperature: Sequence[str],
    batch: str,
    tokens: int,
    repeat: int,
    seed: int,
    place: str,
    compiled: bool = False,
    only: str = "",
) -> Any:
    """Collect and check the options before any model is loaded."""
    from draftproof.bench.engine import Options

    temperatures, batches = numbers(",".join(temperature), float, "temperature"), numbers(batch, int, "batch")
    ways = tuple(only.split(","))
    return Options(
        _names(verify, tree, place), tree, temperatures, batches, tokens, repeat, seed, compiled, ways
    ).check()


def beside_peers(
    target: HFModel,
    draft: Model | None,
    name: str,
    dtype: str,
    prompt: tuple[int, ...],
    seed: int,
    rule: dict[str, Any],  # verify, lossy, tree and sampling, as `generate` takes them
) -> Speeds:
    """Measure the speed on one prompt, in turns with plain sampling and transformers."""
    from draftproof.bench.demo import candidates, compare
    from draftproof.bench.ours import Contender
    from draftproof.bench.pair import as_transformers

    contenders = candidates(Contender(target, draft, **rule), as_transformers(target, name, dtype))
    return compare(contenders, prompt, rule["sampling"].temperature, seed, target.network.device.type)


def _names(text: str, tree: str, place: str) -> tuple[str, ...]:
    """The rules of these names, so that a wrong one, or one for other trees, fails before a model is loaded."""
    from draftproof.engine.choices import asked_shape, best_rule, choose_draw, choose_rule

    shape = asked_shape(tree)
    best = best_rule(shape, device=place.partition(":")[0])
    rules = [best if name == "auto" else choose_rule(name, None) for name in text.split(",")]
    if shape is not None:
        for rule in rules:
            choose_draw(rule, shape, None)
    return tuple(rule.name for rule in rules)


def _notice(line: str) -> None:
    typer.echo(f"note: {line}", err=True)


def _report(
    measure: Callable[..., Iterable[list[dict[str, Any]]]],
    models: tuple[Any, ...],  # as `open_pair` takes them
    prompts: Path | None,
    by: str | None,
    options: Any,
    json: Path | None,
) -> None:
    """Print each comparison as soon as it is measured, and append its rows to the file."""
    from draftproof.bench import pair
    from draftproof.bench.rows import append

    if json is not None:
        check_writable(json, "rows")
    opened = pair.open_pair(*models)
    for rows in measure(opened, pair.prompts(opened, prompts, by), options, _notice):
        if json is not None:
            append(json, rows)
        show(rows)


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print one comparison as a table."""
    from rich.console import Console
    from rich.table import Table

    from draftproof.bench.rows import caption, cells, heads

    if not rows:
        return
    table = Table(title=caption(rows[0]), title_justify="left", box=None, pad_edge=False)
    for head in heads(rows):
        table.add_column(head, justify="left" if head in ("", "time") else "right")
    for row in rows:
        table.add_row(*cells(row, rows))
    Console(width=None if sys.stdout.isatty() else 200).print(table, "")
