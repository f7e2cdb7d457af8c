"""`draftproof generate`: stream text to the terminal, then print a summary; or write the texts of a file of prompts."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from draftproof.commands import batch, showing
from draftproof.commands.bench import beside_peers
from draftproof.commands.grammar_options import Choice, JsonObject, JsonSchema, LarkFile, Regex, grammar_of
from draftproof.commands.shared import (
    AnyTarget,
    Device,
    Draft,
    DraftLength,
    DraftTemperature,
    DraftTopK,
    FrequencyPenalty,
    IgnoreEos,
    Lossy,
    MaxNewTokens,
    MinP,
    NoGenerationConfig,
    Precision,
    PresencePenalty,
    Raw,
    RepetitionPenalty,
    Reproducible,
    Seed,
    Stop,
    Temperature,
    Threads,
    TopK,
    TopP,
    TreeShape,
    TypicalP,
    Verify,
)
from draftproof.commands.text_options import TextOptions, given, prompt_of, rule_of, tree_of, use_threads
from draftproof.errors import DraftproofError, whole

STARTED = time.perf_counter()  # when the command line is imported: commands import what they need later


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads it from standard input.")] = None,
    target: AnyTarget = "smollm2",
    draft: Draft = "auto",
    verify: Verify = "auto",
    tree: TreeShape = "auto",
    draft_length: DraftLength = "auto",
    max_new_tokens: MaxNewTokens = 128,
    samples: Annotated[int, typer.Option("--n", help="Number of independent samples.")] = 1,
    system: Annotated[str | None, typer.Option(help="System message of the chat template.")] = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    typical_p: TypicalP = None,
    repetition_penalty: RepetitionPenalty = None,
    presence_penalty: PresencePenalty = None,
    frequency_penalty: FrequencyPenalty = None,
    no_generation_config: NoGenerationConfig = False,
    draft_temperature: DraftTemperature = None,
    draft_top_k: DraftTopK = None,
    json_schema: JsonSchema = None,
    json_object: JsonObject = False,
    regex: Regex = None,
    grammar: LarkFile = None,
    choice: Choice = None,
    stop: Stop = None,
    ignore_eos: IgnoreEos = False,
    seed: Seed = None,
    reproducible: Reproducible = False,
    lossy: Lossy = None,
    dtype: Precision = "float32",
    device: Device = "auto",
    threads: Threads = None,
    raw: Raw = False,
    logprobs: Annotated[
        int | None, typer.Option(help="With --json or --prompts: each token's logprob, and so many likeliest tokens.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Write the texts of all prompts of this .txt or .jsonl file, with --out.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With --prompts: the .jsonl file for the texts.")] = None,
    rows: Annotated[int, typer.Option(help="With --prompts: number of texts at once.")] = batch.ROWS,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="With --prompts: start anew.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Also time plain sampling and transformers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Generate text: accepted draft tokens in green, corrected ones in yellow, then a summary."""
    options = TextOptions(
        target=target,
        draft=draft,
        verify=rule_of(verify, reproducible, lossy),
        lossy=lossy,
        tree=tree_of(tree, draft_length),
        dtype=dtype,
        device=device,
        max_new_tokens=max_new_tokens,
        stop=tuple(stop or ()),
        seed=seed,
        chat=not raw,
        system=system,
        ignore_eos=ignore_eos,
        logprobs=logprobs,
        generation_config=not no_generation_config,
        controls=given(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            typical_p=typical_p,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            grammar=grammar_of(json_schema, json_object, regex, grammar, choice),
        ),
        draft_controls=given(temperature=draft_temperature, top_k=draft_top_k),
    ).check()
    whole("--n", samples)
    whole("--rows", rows)
    of_batch = {"--overwrite": overwrite, "--rows": rows != batch.ROWS}
    _check_kind(prompt, prompts, out, of_batch, {"--compare": compare, "--json": as_json})
    if logprobs is not None and not as_json and prompts is None:
        raise DraftproofError("--logprobs are for programs: add --json, or --prompts with --out")
    use_threads(threads)
    if prompts is not None and out is not None:
        raise typer.Exit(batch.run(options, prompts, out, samples=samples, rows=rows, overwrite=overwrite))
    if compare and "grammar" in options.controls:
        raise DraftproofError("--compare does not go with a grammar: leave it out")
    if compare and len(options.drafters) > 1:
        raise DraftproofError(
            f"--compare takes one drafter, not {len(options.drafters)}: leave it out, or name one of them"
        )
    _write(options, prompt_of(prompt or ""), samples, compare, as_json)


def _check_kind(
    prompt: str | None, prompts: Path | None, out: Path | None, of_batch: dict[str, bool], of_text: dict[str, bool]
) -> None:
    """Raise unless there is one prompt, or a file of them and one for their texts, and only options that go with it."""
    if prompt is None and prompts is None:
        raise DraftproofError("there is no prompt: give one, - for standard input, or a file with --prompts")
    if prompt is not None and prompts is not None:
        raise DraftproofError("a prompt and --prompts are two kinds of work: give only one of them")
    if (prompts is None) != (out is None):
        raise DraftproofError("--prompts FILE and --out FILE.jsonl belong together: give both of them")
    kind, others = ("one prompt", of_batch) if prompts is None else ("--prompts", of_text)
    for name in (name for name, chosen in others.items() if chosen):
        raise DraftproofError(f"{name} does not go with {kind}: leave it out")


def _write(options: TextOptions, words: str, samples: int, compare: bool, as_json: bool) -> None:
    """Write one text, or several samples, to standard output."""
    from draftproof.couple import COUPLINGS
    from draftproof.engine.arguments import encode
    from draftproof.engine.generate import prepare, stream

    model, drafts = options.load()
    sampling, draft_sampling = options.samplings(model)
    ids = encode(model, options.words(words), options.chat)
    settings: dict[str, Any] = {
        "draft": drafts,
        "verify": options.verify,
        "lossy": options.lossy,
        "tree": None if options.tree == "auto" else options.tree,
        "sampling": sampling,
        "draft_sampling": draft_sampling,
        "max_new_tokens": options.max_new_tokens,
        "stop": options.stop,
        "seed": options.seed,
        "logprobs": options.logprobs,
    }
    start = time.perf_counter() - STARTED  # imports and loading
    if samples == 1:
        writing = stream(model, ids, **settings)
        outputs = [showing.finish(writing) if as_json else showing.show(writing)]
    else:
        scheduler, [requests] = prepare(model, [ids], samples, **settings)
        outputs = showing.samples(scheduler, requests, shown=not as_json)
    for output in outputs:
        output.trace.start_seconds += start
    first = outputs[0]
    cancelled = any(output.finish == "cancelled" for output in outputs)
    speeds = None
    if compare and not cancelled:
        rule = {
            "verify": "auto" if options.lossy else first.trace.verifier,
            "lossy": options.lossy,
            "tree": options.tree,
            "sampling": sampling,
        }
        draft = drafts[0] if drafts else None
        speeds = beside_peers(model, draft, options.target, options.dtype, ids, first.seed, rule)
    by_clock = options.seed is None and bool(first.trace.shapes) and options.verify not in COUPLINGS
    own = options.own_controls(model)
    if as_json:
        texts = [showing.as_dict(output) for output in outputs]
        report: dict[str, Any] = dict(texts[0]) if samples == 1 else {"seed": first.seed, "samples": texts}
        report |= showing.settings_as_dict(options, model, first, sampling)
        report |= {"prompt_tokens": len(ids), "prompt_ids": ids}
        report |= {} if speeds is None else {"compared": speeds._asdict()}
        typer.echo(json.dumps(report, indent=1))
    elif samples == 1:
        showing.summarise(first, speeds, by_clock, own)
    else:
        showing.summarise_samples(outputs, speeds, by_clock, own)
    if cancelled:
        raise typer.Exit(130)
