"""The command line of the benchmarks: draftproof bench engine, samples, demo, kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.commands.options import numbers
from draftproof.commands.shared import AnyTarget
from draftproof.paths import check_writable

if TYPE_CHECKING:
    from draftproof.bench.demo import Speeds
    from draftproof.models.base import Model
    from draftproof.models.hf import HFModel

app = typer.Typer(help="Measure speed beside transformers, every peer in the same run.", no_args_is_help=True)

Draft = Annotated[str, typer.Option(help="auto, head, ngram, a model, text:MODEL, or none.")]
Prompts = Annotated[Path | None, typer.Option(help="A .txt or .jsonl file; a few of our own by default.")]
By = Annotated[str | None, typer.Option(help="Measure each value of this field of the prompts' file apart.")]
Temperature = Annotated[list[str], typer.Option(help="One or several, as in 0.8,1.0, or given several times.")]
Verify = Annotated[str, typer.Option(help="Names of `draftproof list`, as in token,block.")]
Shape = Annotated[str, typer.Option("--tree", help="Shape of the guesses: chain:5, star:4, best:20x5, auto.")]
Tokens = Annotated[int, typer.Option("--tokens", "-n", help="Length of each text.")]
Repeat = Annotated[int, typer.Option(help="Rounds, each with other prompts.")]
Seed = Annotated[int, typer.Option(help="Of the first round; later ones count on from it.")]
Precision = Annotated[str, typer.Option(help="float32, bfloat16 or int8; transformers runs int8's peers in float32.")]
Inflate = Annotated[str | None, typer.Option(help="Give the target the cost of a larger shape, as in 8b.")]
Blur = Annotated[float, typer.Option(help="Share of noise in the drafter's weights, so that it agrees less.")]
Compiled = Annotated[bool, typer.Option("--compile", help="Compile our models on a GPU, transformers' on a CPU.")]
Json = Annotated[Path | None, typer.Option("--json", help="Append the rows to this file.")]


@app.command()
def engine(
    target: AnyTarget = "smollm2",
    draft: Draft = "ngram",
    prompts: Prompts = None,
    by: By = None,
    temperature: Temperature = ["1.0"],  # noqa: B006
    batch: Annotated[str, typer.Option(help="Texts at a time, as in 1,8,32.")] = "1",
    verify: Verify = "block",
    tree: Shape = "auto",
    tokens: Tokens = 64,
    repeat: Repeat = 5,
    seed: Seed = 0,
    dtype: Precision = "float32",
    compiled: Compiled = False,
    inflate: Inflate = None,
    blur: Blur = 0.0,
    only: Annotated[str, typer.Option(help="Ways whose names contain one of these, as in draftproof,static.")] = "",
    json: Json = None,
) -> None:
    """Plain and speculative sampling beside transformers' plain, static and assisted generation."""
    from draftproof.bench import engine as bench

    options = _options(verify, tree, temperature, batch, tokens, repeat, seed, compiled, only)
    _report(bench.measure, (target, draft, dtype, inflate, blur), prompts, by, options, json)


@app.command()
def samples(
    target: AnyTarget = "smollm2",
    draft: Draft = "none",
    prompts: Prompts = None,
    by: By = None,
    temperature: Temperature = ["1.0"],  # noqa: B006
    batch: Annotated[str, typer.Option(help="Samples of each prompt, as in 8,32.")] = "32",
    verify: Verify = "block",
    tree: Shape = "chain:5",
    tokens: Tokens = 64,
    repeat: Repeat = 3,
    seed: Seed = 0,
    dtype: Precision = "float32",
    compiled: Compiled = False,
    inflate: Inflate = None,
    blur: Blur = 0.0,
    json: Json = None,
) -> None:
    """Many samples of one prompt: one by one, together, and together by transformers."""
    from draftproof.bench import samples as bench

    options = _options(verify, tree, temperature, batch, tokens, repeat, seed, compiled)
    _report(bench.measure, (target, draft, dtype, inflate, blur), prompts, by, options, json)


@app.command()
def demo(
    target: AnyTarget = "smollm2",
    draft: Draft = "auto",
    prompts: Prompts = None,
    by: By = None,
    temperature: Temperature = ["0.8"],  # noqa: B006
    verify: Verify = "block",
    tree: Shape = "auto",
    tokens: Tokens = 64,
    repeat: Repeat = 5,
    seed: Seed = 0,
    dtype: Precision = "int8",
    json: Json = None,
) -> None:
    """What a first user meets: the default draft, plain sampling, and transformers' float32 generate."""
    from draftproof.bench import demo as bench

    options = _options(verify, tree, temperature, "1", tokens, repeat, seed)
    _report(bench.measure, (target, draft, dtype), prompts, by, options, json)


@app.command()
def kernels(
    vocabulary: Annotated[str, typer.Option(help="Sizes of the vocabulary.")] = "32000,128256,151936",
    batch: Annotated[str, typer.Option(help="Sequences verified at a time.")] = "1,8,64,256",
    mode: Annotated[str, typer.Option(help="Controls: temp, topk_topp, topp, minp.")] = "temp,topk_topp,topp,minp",
    peers: Annotated[
        bool, typer.Option(help="PyTorch too, and vLLM and FlashInfer where they can be imported.")
    ] = True,
    check: Annotated[
        bool, typer.Option(help="Compare with the laws at full size, and count two million draws.")
    ] = True,
    json: Json = None,
) -> None:
    """Fused verification beside its memory floor and its peers, on a GPU."""

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
    compiled: bool = False,
    only: str = "",
) -> Any:
    """What is measured, checked before any model is loaded."""
    from draftproof.bench.engine import Options

    temperatures, batches = numbers(",".join(temperature), float, "temperature"), numbers(batch, int, "batch")
    ways = tuple(only.split(","))
    return Options(_names(verify), tree, temperatures, batches, tokens, repeat, seed, compiled, ways).check()


def beside_peers(
    target: HFModel,
    draft: Model | None,
    name: str,
    dtype: str,
    prompt: tuple[int, ...],
    seed: int,
    rule: dict[str, Any],  # verify, lossy, tree and sampling, as `generate` takes them
) -> Speeds:
    """How fast a text like this is written, beside plain sampling and transformers, in turns."""
    from draftproof.bench.demo import compare, ways
    from draftproof.bench.ours import Contender
    from draftproof.bench.pair import as_transformers

    both = ways(Contender(target, draft, **rule), as_transformers(target, name, dtype))
    return compare(both, prompt, rule["sampling"].temperature, seed)


def _names(text: str) -> tuple[str, ...]:
    """Names of rules; a wrong one should not wait for a model to load."""
    from draftproof.engine.setup import choose_rule

    return tuple(choose_rule(name, None).name for name in text.split(","))


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
    """Each comparison as soon as it is measured: a table, and rows in the file."""
    from draftproof.bench import pair
    from draftproof.bench.rows import append

    if json is not None:
        check_writable(json, "rows")
    opened = pair.open_pair(*models)
    for made in measure(opened, pair.prompts(opened, prompts, by), options, _notice):
        if json is not None:
            append(json, made)
        show(made)


def show(made: Sequence[dict[str, Any]]) -> None:
    """A table of one comparison."""
    from rich.console import Console
    from rich.table import Table

    from draftproof.bench.rows import caption, cells, heads

    if not made:
        return
    table = Table(title=caption(made[0]), title_justify="left", box=None, pad_edge=False)
    for head in heads(made):
        table.add_column(head, justify="left" if head in ("", "time") else "right")
    for row in made:
        table.add_row(*cells(row, made))
    Console(width=None if sys.stdout.isatty() else 200).print(table, "")
