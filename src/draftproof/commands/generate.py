"""`draftproof generate`: stream text to the terminal, then print a summary."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.commands.bench import beside_peers
from draftproof.commands.shared import (
    AnyTarget,
    Draft,
    DraftLength,
    DraftTemperature,
    DraftTopK,
    FrequencyPenalty,
    IgnoreEos,
    Lossy,
    MaxNewTokens,
    MinP,
    Precision,
    PresencePenalty,
    Raw,
    RepetitionPenalty,
    Reproducible,
    Seed,
    Stop,
    Temperature,
    TopK,
    TopP,
    TreeShape,
    TypicalP,
    Verify,
)
from draftproof.errors import DraftproofError

if TYPE_CHECKING:
    from draftproof.engine.generate import Stream
    from draftproof.engine.request import Output

COLOURS = {"accepted": "green", "corrected": "yellow", "plain": ""}


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    target: AnyTarget = "smollm2",
    draft: Draft = "auto",
    verify: Verify = "block",
    tree: TreeShape = "auto",
    draft_length: DraftLength = "auto",
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 1.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    typical_p: TypicalP = 1.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    presence_penalty: PresencePenalty = 0.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    draft_temperature: DraftTemperature = None,
    draft_top_k: DraftTopK = None,
    stop: Stop = None,
    ignore_eos: IgnoreEos = False,
    seed: Seed = None,
    reproducible: Reproducible = False,
    lossy: Lossy = None,
    dtype: Precision = "float32",
    raw: Raw = False,
    compare: Annotated[bool, typer.Option("--compare", help="Also time plain sampling and transformers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Generate text: accepted guesses in green, corrected ones in yellow, then a summary."""
    import dataclasses

    from draftproof.couple import COUPLINGS
    from draftproof.draft import Tree
    from draftproof.engine.arguments import encode
    from draftproof.engine.generate import stream
    from draftproof.engine.setup import choose_rule
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
        end_tokens=() if ignore_eos else None,
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
    choose_rule(verify, lossy)  # fail before a model is loaded
    names = _names(draft, compare)
    words = _stdin() if prompt == "-" else prompt
    model = load(target, dtype=dtype)
    drafts = [found for name in names if (found := drafter(name, model)) is not None]
    writing = stream(model, words, draft=drafts, **settings)
    output = _finish(writing) if as_json else _show(writing)
    speeds = None
    if compare:
        rule = {"verify": verify, "lossy": lossy, "tree": tree, "sampling": sampling}
        ids = encode(model, words, not raw)
        speeds = beside_peers(model, drafts[0] if drafts else None, target, dtype, ids, output.seed, rule)
    if as_json:
        typer.echo(json.dumps(_as_dict(output, speeds), indent=1))
    else:
        by_clock = seed is None and bool(output.trace.shapes) and verify not in COUPLINGS
        _summarise(output, speeds, by_clock)


def _names(text: str, compare: bool) -> list[str]:
    """The names of the drafters; several may draft together."""
    names = text.split(",")
    if compare and len(names) > 1:
        raise DraftproofError(f"--compare takes one drafter, not {len(names)}: leave it out, or name one of them")
    return names


def _rule(verify: str, reproducible: bool, lossy: str | None) -> str:
    """The verifier that the options --verify, --reproducible and --lossy name."""
    given = [f"--verify {verify}"] if verify != "block" else []
    given += ["--reproducible"] if reproducible and verify != "gumbel" else []  # the same rule
    given += [f"--lossy {lossy}"] if lossy is not None else []
    if len(given) > 1:
        raise DraftproofError(f"{' and '.join(given)} name different rules: give only one of them")
    return "gumbel" if reproducible else verify


def _stdin() -> str:
    if sys.stdin is None:  # closed by the caller
        raise DraftproofError("there is no standard input to read the prompt from: give the prompt itself")
    try:
        return sys.stdin.read().removesuffix("\n")  # the newline that ends the last line is not part of the prompt
    except UnicodeDecodeError as error:
        raise DraftproofError(f"standard input is not {error.encoding} text: convert it") from error


def _shape(tree: str, draft_length: str) -> str:
    """The tree that the options --tree and --draft-length name."""
    if draft_length == "auto":
        return tree
    if not (draft_length.isdecimal() and int(draft_length) > 0):
        raise DraftproofError(
            f"--draft-length must be auto or at least 1, not {draft_length}: for no draft, use --draft none"
        )
    if tree != "auto":
        raise DraftproofError(f"--tree {tree} already sets the draft length: give either --tree or --draft-length")
    return f"chain:{draft_length}"


def _show(writing: Stream) -> Output:
    """Print pieces of text as they come, with colours if the terminal supports them."""
    from rich.console import Console
    from rich.segment import Segment, Segments
    from rich.style import Style

    console = Console(highlight=False, soft_wrap=True)
    for piece in writing:  # segments: rich's Text would drop tabs and carriage returns
        console.print(Segments([Segment(piece.text, Style.parse(COLOURS[piece.kind]))]), end="")
    console.print()
    return writing.output


def _finish(writing: Stream) -> Output:
    for _ in writing:
        pass
    return writing.output


def _summarise(output: Output, speeds: Any, by_clock: bool) -> None:
    """Print a few lines to standard error, so that a pipe gets the text alone."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, style="dim", soft_wrap=True)
    seed = "no seed, so drafts were tuned by the clock" if by_clock else f"seed {output.seed}"
    console.print(f"\n{output.trace.summary()}\nfinished: {output.finish}; {seed}", markup=False)
    if speeds is not None:
        parts = [f"{t:.2f}x {name} ({speeds.tokens_per_s[name]:.1f} tokens/s)" for name, t in speeds.times.items()]
        console.print(f"compared in turns, {speeds.rounds} rounds of {speeds.tokens} tokens: {', '.join(parts)}")


def _as_dict(output: Output, speeds: Any) -> dict[str, Any]:
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
