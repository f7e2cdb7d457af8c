"""`draftproof audit` and `draftproof collect`: the audit from the command line.

Exit codes of `audit`: 0 exact so far, 1 not exact, 2 the input could not be audited.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.commands.grammar_options import Choice, JsonObject, JsonSchema, LarkFile, Regex, grammar_of
from draftproof.commands.shared import (
    Device,
    MinP,
    NoGenerationConfig,
    Precision,
    Raw,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
)
from draftproof.commands.text_options import given, own_controls
from draftproof.errors import DraftproofError
from draftproof.paths import check_writable

if TYPE_CHECKING:
    from draftproof.audit.transcripts import Transcript
    from draftproof.sampling import Sampling

Target = Annotated[str, typer.Option(help="smollm2, tiny, a folder, a .gguf file or a Hub id.")]
TOLERANCE = 1e-4
SOURCES = ("engine", "transformers", "assisted", "lookup", "vllm")


def audit(
    transcripts: Annotated[Path, typer.Argument(help="JSONL file with prompt, output and settings on each line.")],
    target: Target = "smollm2",
    draft: Annotated[
        str, typer.Option(help="The draft that the engine used: ngram, head, a model, ngram|MODEL; or none.")
    ] = "none",
    alpha: Annotated[float, typer.Option(help="Probability of a false alarm, however long the audit.")] = 0.01,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Allowance for rounding: total variation at each token.", show_default=f"{TOLERANCE:g}"),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="Plain transcripts of the same engine: compare with them, without an allowance."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write the report to this HTML file.")] = None,
    dtype: Precision = "float32",
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Test whether the engine that wrote these transcripts is exact. Exit code 0: so far; 1: no; 2: bad input.

    If the engine used a draft, name it: faults that involve it are then found many times sooner. For an engine that
    computes in bfloat16, give the same --dtype, and a --tolerance at which its plain sampling passes. Or compare it
    with its plain sampling: collect both from the same prompts and settings with different seeds, and name the plain
    transcripts with --against.
    """
    from draftproof.audit import compare, read
    from draftproof.audit import run as auditing
    from draftproof.audit.page import html as page
    from draftproof.models import check_drafters, drafter, load

    for path in (transcripts, against):
        if path is not None and not path.is_file():
            raise DraftproofError(f"no transcripts at {path}: create some with `draftproof collect`")
    if against is not None and tolerance is not None:
        raise DraftproofError("a comparison with plain transcripts needs no allowance: leave --tolerance out")
    allowance = TOLERANCE if tolerance is None else tolerance
    auditing.check(alpha, allowance)
    if html is not None:
        check_writable(html, "the report")
    check_drafters(draft)
    model = load(target, dtype=dtype, device=device)
    guesser = drafter(draft, model)
    texts = _counted(read(transcripts, model))
    if against is not None:
        report = compare(texts, read(against, model), model, draft=guesser, alpha=alpha)
    else:
        report = auditing.audit(texts, model, draft=guesser, alpha=alpha, tolerance=allowance)
    if html is not None:
        html.write_text(page(report), encoding="utf-8")
    typer.echo(report.json() if as_json else report.text())
    raise typer.Exit(0 if report.exact else 1)


def _counted(transcripts: Iterator[Transcript]) -> Iterator[Transcript]:
    """Pass transcripts through, with a progress line on the terminal."""
    tokens, shown = 0, 0.0
    for transcript in transcripts:
        tokens += len(transcript.output)
        if sys.stderr.isatty() and time.monotonic() > shown + 1:
            shown = time.monotonic()
            typer.echo(f"\r{tokens:,} tokens read", nl=False, err=True)
        yield transcript
    if shown:
        typer.echo("\r" + " " * 40 + "\r", nl=False, err=True)


def collect(
    source: Annotated[str, typer.Argument(help="engine, transformers, assisted, lookup, vllm, or a server's URL.")],
    prompts: Annotated[Path, typer.Argument(help="A .txt file, one prompt per line, or a .jsonl file.")],
    out: Annotated[Path, typer.Argument(help="JSONL file to write.")],
    target: Target = "smollm2",
    draft: Annotated[str, typer.Option(help="For engine and assisted: as for generate, or none.")] = "none",
    verify: Annotated[
        str, typer.Option(help="For engine: a rule of `draftproof list`; auto is block, or what the tree needs.")
    ] = "auto",
    tree: Annotated[str, typer.Option(help="For engine: draft tree, such as chain:5.")] = "chain:5",
    model: Annotated[str, typer.Option(help="For a server: the model's name on it.")] = "",
    samples: Annotated[int, typer.Option(help="Samples per prompt.")] = 1,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="Maximum length of each text.")] = 128,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = None,
    no_generation_config: NoGenerationConfig = False,
    json_schema: JsonSchema = None,
    json_object: JsonObject = False,
    regex: Regex = None,
    grammar: LarkFile = None,
    choice: Choice = None,
    seed: Annotated[int, typer.Option(help="Random seed, for engines that take one.")] = 0,
    dtype: Precision = "float32",
    device: Device = "auto",
    raw: Raw = False,
) -> None:
    """Sample texts from an engine and write them as transcripts for `draftproof audit`."""
    from draftproof.audit import write
    from draftproof.draft import Tree
    from draftproof.engine.arguments import encode
    from draftproof.engine.choices import best_rule, choose_draw, choose_rule
    from draftproof.models import check_drafters, load
    from draftproof.noise import check_seed
    from draftproof.prompts import read
    from draftproof.sampling import Sampling

    controls = given(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        grammar=grammar_of(json_schema, json_object, regex, grammar, choice),
    )
    Sampling(**controls)  # raises if one is wrong
    for name, number in (("samples", samples), ("max_new_tokens", max_new_tokens)):
        if number < 1:
            raise DraftproofError(f"{name} must be at least 1, not {number}")
    check_seed(seed)
    if source not in SOURCES and not source.startswith(("http://", "https://")):
        raise DraftproofError(f"unknown source {source!r}: use {', '.join(SOURCES)} or a URL")
    if source == "engine" and draft != "none":
        shape = Tree.parse(tree)
        choose_draw(best_rule(shape) if verify == "auto" else choose_rule(verify, None), shape, None)
    questions = read(prompts)
    check_writable(out, "transcripts")
    if out.exists() and out.samefile(prompts):
        raise DraftproofError(f"{out} contains the prompts: choose another file for the transcripts")
    check_drafters(draft)
    theirs = source in ("transformers", "lookup", "assisted")  # they generate with transformers' own network
    loaded = load(target, dtype=dtype, device=device, lean=not theirs)
    sampling = Sampling(**({} if no_generation_config else own_controls(loaded, controls)), **controls)
    ids = [encode(loaded, question, chat=not raw) for question in questions]
    settings: dict[str, Any] = {"samples": samples, "max_new_tokens": max_new_tokens}
    if not source.startswith("http"):
        settings["seed"] = seed
    transcripts = _source(source, loaded, ids, sampling, settings, draft, verify, tree, model or target)
    typer.echo(f"{write(out, transcripts)} transcripts in {out}", err=True)


def _source(
    source: str,
    target: Any,
    prompts: list[tuple[int, ...]],
    sampling: Sampling,
    settings: dict[str, Any],
    draft: str,
    verify: str,
    tree: str,
    model: str,
) -> Iterator[Transcript]:
    """Call the collector of that name with the options it takes."""
    from draftproof.audit import collect as collectors
    from draftproof.draft import Tree
    from draftproof.models import drafter, load
    from draftproof.models.hf import HFModel

    guesser = drafter(draft, target)
    match source:
        case "engine":
            shape = Tree.chain(0) if guesser is None else Tree.parse(tree)
            return collectors.engine(target, prompts, sampling, draft=guesser, verify=verify, tree=shape, **settings)
        case "transformers":
            return collectors.transformers(target, prompts, sampling, **settings)
        case "lookup":
            return collectors.transformers(target, prompts, sampling, lookup=5, **settings)
        case "assisted":
            if not isinstance(guesser, HFModel):
                raise DraftproofError(
                    f"assisted generation needs a model as its draft, not {draft!r}: name one with --draft"
                )
            assistant = load(draft, device=str(target.network.device), lean=False)
            return collectors.transformers(target, prompts, sampling, assistant=assistant, **settings)
        case "vllm":
            return collectors.vllm(model, target, prompts, sampling, **settings)
        case url if url.startswith(("http://", "https://")):
            return collectors.endpoint(url, model, target, prompts, sampling, **settings)
    raise AssertionError(source)  # checked before
