"""The command line: draftproof generate, limits, distill, audit, collect, bench, list."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.audit.command import audit, collect
from draftproof.bench.command import app as bench
from draftproof.distill.command import distill
from draftproof.errors import DraftproofError
from draftproof.options import numbers

if TYPE_CHECKING:
    from draftproof.bench.demo import Speeds
    from draftproof.engine.generate import Stream
    from draftproof.engine.request import Output

app = typer.Typer(
    help="Faster text from a language model, from exactly the model's own distribution.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(bench, name="bench")

COLOURS = {"accepted": "green", "corrected": "yellow", "plain": ""}


def _version(wanted: bool) -> None:
    if wanted:
        from draftproof import __version__

        typer.echo(f"draftproof {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Faster text from a language model, from exactly the model's own distribution."""


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="What to write about; - reads it from standard input.")],
    target: Annotated[str, typer.Option(help="smollm2, tiny, a folder, a .gguf file or a Hub id.")] = "smollm2",
    draft: Annotated[str, typer.Option(help="auto, head, ngram, cache, a model, text:MODEL, several, none.")] = "auto",
    verify: Annotated[str, typer.Option(help="A name of `draftproof list`.")] = "block",
    tree: Annotated[str, typer.Option(help="Shape of the guesses: chain:5, star:4, paths:4x5, auto.")] = "auto",
    draft_length: Annotated[str, typer.Option(help="So many guesses in a row, as --tree chain; or auto.")] = "auto",
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="Length of the text.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens that hold this mass.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Keep tokens at least this share as likely as the best.")] = 0.0,
    typical_p: Annotated[float, typer.Option(help="Keep the most typical tokens that hold this mass.")] = 1.0,
    repetition_penalty: Annotated[float, typer.Option(help="Over prompt and output; 1 is off.")] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="Over the output; 0 is off.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="Over the output; 0 is off.")] = 0.0,
    draft_temperature: Annotated[float | None, typer.Option(help="Of the guesses; the target's by default.")] = None,
    draft_top_k: Annotated[int | None, typer.Option(help="Of the guesses; the target's by default.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be given several times.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    reproducible: Annotated[
        bool, typer.Option("--reproducible", help="Text depends on target and seed alone, not on the draft.")
    ] = False,
    lossy: Annotated[str | None, typer.Option(help="Give up exactness: lenience:0.8, typical, ...")] = None,
    dtype: Annotated[str, typer.Option(help="Precision of the weights.")] = "float32",
    raw: Annotated[bool, typer.Option("--raw", help="Do not use the model's chat template.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Time plain sampling and transformers beside it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Write text: accepted guesses in green, corrected ones in yellow, then how it went."""
    import dataclasses

    from draftproof.couple import COUPLINGS
    from draftproof.draft import Tree
    from draftproof.engine.asked import encode
    from draftproof.engine.generate import choose_rule, stream
    from draftproof.models import drafter, load
    from draftproof.sampling import Sampling

    verify = _rule(verify, reproducible, lossy)
    tree = _shape(tree, draft_length)
    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
    )
    changes: dict[str, Any] = {"temperature": draft_temperature, "top_k": draft_top_k}
    changes = {name: value for name, value in changes.items() if value is not None}
    settings: dict[str, Any] = {
        "verify": verify,
        "lossy": lossy,
        "tree": None if tree == "auto" else Tree.parse(tree),
        "sampling": sampling,
        "draft_sampling": dataclasses.replace(sampling, **changes) if changes else None,
        "max_new_tokens": max_new_tokens,
        "stop": tuple(stop or ()),
        "seed": seed,
        "chat": not raw,
    }
    choose_rule(verify, lossy)  # a wrong name should not wait for a model to load
    names = _names(draft, compare)
    words = _stdin() if prompt == "-" else prompt
    model = load(target, dtype=dtype)
    drafts = [one for name in names if (one := drafter(name, model)) is not None]
    writing = stream(model, words, draft=drafts, **settings)
    output = _finish(writing) if as_json else _show(writing)
    speeds = None
    if compare:
        from draftproof.bench.demo import compare as compare_ways
        from draftproof.bench.demo import ways
        from draftproof.bench.ours import Setup
        from draftproof.bench.pair import as_transformers

        setup = Setup(model, drafts[0] if drafts else None, verify, tree, False, sampling, lossy)
        peer = as_transformers(model, target, dtype)
        speeds = compare_ways(ways(setup, peer), encode(model, words, not raw), temperature, output.seed)
    if as_json:
        typer.echo(json.dumps(_as_dict(output, speeds), indent=1))
    else:
        by_clock = seed is None and bool(output.trace.shapes) and verify not in COUPLINGS
        _summarise(output, speeds, by_clock)


@app.command()
def limits(
    target: Annotated[str, typer.Option(help="smollm2, tiny, a folder, a .gguf file or a Hub id.")] = "smollm2",
    draft: Annotated[str, typer.Option(help="head, ngram or a model.")] = "ngram",
    prompts: Annotated[Path | None, typer.Option(help="A .txt file, one prompt a line, or a .jsonl file.")] = None,
    k: Annotated[str, typer.Option("--k", help="Numbers of guesses for a token, with commas.")] = "1,2,4",
    temperature: Annotated[str, typer.Option(help="One or several, with commas.")] = "1.0",
    tokens: Annotated[int, typer.Option(help="Length of the text for each prompt.")] = 24,
    length: Annotated[int, typer.Option(help="Length of the paths that are guessed.")] = 4,
    draft_top_k: Annotated[int, typer.Option(help="The drafter draws from so many tokens; 0 is all.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of texts and guesses.")] = 0,
    dtype: Annotated[str, typer.Option(help="Precision of the weights.")] = "float32",
    raw: Annotated[bool, typer.Option("--raw", help="Do not use the model's chat template.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw acceptance against K: a .svg or .png file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """How good each algorithm is on your models and prompts, how good it could be, and which one to use."""
    from rich.console import Console
    from rich.progress import Progress

    from draftproof.limits import Settings, measure, report
    from draftproof.limits.prompts import PROMPTS, read
    from draftproof.models import drafter, load
    from draftproof.noise import check_seed

    sizes = numbers(k, int, "k"), numbers(temperature, float, "temperature")
    settings = Settings(*sizes, tokens, length, draft_top_k, check_seed(seed), chat=not raw).check()
    if plot is not None:
        report.check_plot(plot)
    texts = list(PROMPTS) if prompts is None else read(prompts)
    model = load(target, dtype=dtype)
    guesser = None if draft == "none" else drafter(draft, model)
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


@app.command("list")
def list_rules(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Every algorithm: paper, ways of drawing it is exact for, trees it takes; then drafters and targets by name."""
    from rich.console import Console
    from rich.table import Table

    rows = _rules()
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    table = Table("name", "kind", "paper", "draws", "trees", "what it does", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(", ".join(cell) if isinstance(cell, list) else cell for cell in row.values()))
    Console(width=None if sys.stdout.isatty() else 200).print(table)


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


def _names(text: str, compare: bool) -> list[str]:
    """The drafters asked for: several guess side by side."""
    names = [] if text == "none" else text.split(",")
    if compare and len(names) > 1:
        raise DraftproofError(f"--compare takes one drafter, not {len(names)}: leave it out, or name one of them")
    return names


def _rule(verify: str, reproducible: bool, lossy: str | None) -> str:
    """The verifier that was asked for in one way or the other."""
    asked = [f"--verify {verify}"] if verify != "block" else []
    asked += ["--reproducible"] if reproducible else []
    asked += [f"--lossy {lossy}"] if lossy is not None else []
    if len(asked) > 1:
        raise DraftproofError(f"{' and '.join(asked)} name different rules: give one of them")
    return "gumbel" if reproducible else verify


def _stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise DraftproofError(f"standard input is not {error.encoding} text: convert it") from error


def _shape(tree: str, draft_length: str) -> str:
    """The shape that was asked for in one way or the other."""
    if draft_length == "auto":
        return tree
    if not (draft_length.isdecimal() and int(draft_length) > 0):
        raise DraftproofError(f"--draft-length must be auto or at least 1, not {draft_length}: for none, --draft none")
    if tree != "auto":
        raise DraftproofError(f"--tree {tree} says how long a draft is: give one of --tree and --draft-length")
    return f"chain:{draft_length}"


def _show(writing: Stream) -> Output:
    """Print pieces as they come; colours only on a terminal that wants them."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for piece in writing:
        console.print(Text(piece.text, style=COLOURS[piece.kind]), end="")
    console.print()
    return writing.output


def _finish(writing: Stream) -> Output:
    for _ in writing:
        pass
    return writing.output


def _summarise(output: Output, speeds: Speeds | None, by_clock: bool) -> None:
    """A few lines on standard error, so that a pipe gets the text alone."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, style="dim", soft_wrap=True)
    seed = "no seed, so drafts followed the clock" if by_clock else f"seed {output.seed}"
    console.print(f"\n{output.trace.summary()}\nfinished: {output.finish}; {seed}", markup=False)
    if speeds is not None:
        parts = [f"{t:.2f}x {name} ({speeds.tokens_per_s[name]:.1f} tokens/s)" for name, t in speeds.times.items()]
        console.print(f"compared in turns, {speeds.rounds} rounds of {speeds.tokens} tokens: {', '.join(parts)}")


def _as_dict(output: Output, speeds: Speeds | None) -> dict[str, Any]:
    report: dict[str, Any] = {
        "text": output.text,
        "tokens": output.tokens,
        "finish": output.finish,
        "notice": output.notice,
        "seed": output.seed,
        "tokens_per_s": _speed(output),
        "trace": output.trace.as_dict(),
    }
    return report if speeds is None else {**report, "compared": speeds._asdict()}


def _speed(output: Output) -> float:
    return output.trace.tokens / max(sum(output.trace.seconds.values()), 1e-9)


app.command()(distill)
app.command()(audit)
app.command()(collect)


def _quiet() -> None:
    """What other packages say when they are imported is not for our users; `python -W` brings it back."""
    import logging
    import warnings

    if not sys.warnoptions:
        warnings.filterwarnings("ignore", module=r"(?!draftproof)")
    logging.getLogger().setLevel(logging.ERROR)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # it would warn of the process that fetches a model
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # it would tell of every try to reach the Hub


def main() -> None:
    """Run the command line; what a user can mend is one line and exit code 2, what the system refuses, 1."""
    _quiet()
    try:
        app()
    except DraftproofError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except OSError as error:  # no space, no right to write
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
