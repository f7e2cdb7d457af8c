"""Options that several commands share."""

from typing import Annotated, Any

import typer

PRECISIONS = ("float32", "bfloat16", "float16", "int8")
DEVICES = ("auto", "cpu", "cuda", "cuda:1", "mps")


def _check_precision(name: str | None) -> str | None:
    """Fail before a command begins."""
    from draftproof.models.devices import check_precision

    return None if name is None else check_precision(name)


def precision_option(help: str) -> Any:
    """An option whose values are shown by --help and completed by the shell."""
    return typer.Option(
        help=help,
        metavar="|".join(PRECISIONS),
        callback=_check_precision,
        autocompletion=lambda: list(PRECISIONS),
    )


AnyTarget = Annotated[str, typer.Option(help="smollm2, tiny, a folder, a .gguf file or a Hub id.")]
Precision = Annotated[str, precision_option("Precision of the weights.")]
Device = Annotated[
    str,
    typer.Option(
        help="Where the model runs; auto is a GPU where there is one.",
        metavar="|".join(DEVICES),
        autocompletion=lambda: list(DEVICES),
    ),
]
Threads = Annotated[int | None, typer.Option(help="CPU threads; as torch chooses by default.")]
Raw = Annotated[bool, typer.Option("--raw", help="Do not use the model's chat template.")]


def _control(help: str, off: str) -> Any:
    """An option of the sampling. Where it is not given, the model's generation_config.json decides."""
    return typer.Option(help=help, show_default=f"the model's, else {off}")


# Of the sampling
Temperature = Annotated[float | None, _control("Sampling temperature; 0 is greedy.", "1")]
TopK = Annotated[int | None, _control("Keep the k likeliest tokens; 0 is off.", "0")]
TopP = Annotated[float | None, _control("Keep the likeliest tokens with this total probability; 1 is off.", "1")]
MinP = Annotated[
    float | None, _control("Keep tokens at least this many times as likely as the likeliest; 0 is off.", "0")
]
TypicalP = Annotated[float | None, _control("Keep the most typical tokens with this total probability; 1 is off.", "1")]
RepetitionPenalty = Annotated[float | None, _control("Penalty on tokens of prompt and output; 1 is off.", "1")]
PresencePenalty = Annotated[
    float | None, typer.Option(help="Penalty on tokens of the output; 0 is off.", show_default="0")
]
FrequencyPenalty = Annotated[
    float | None, typer.Option(help="Penalty for each use in the output; 0 is off.", show_default="0")
]
NoGenerationConfig = Annotated[
    bool, typer.Option("--no-generation-config", help="Ignore the sampling settings of the model's own file.")
]

# Of the draft
Draft = Annotated[
    str, typer.Option(help="auto, head, ngram, cache, a model, text:MODEL, none, or several with commas.")
]
Verify = Annotated[str, typer.Option(help="A rule of `draftproof list`; auto is block, or what the tree needs.")]
TreeShape = Annotated[str, typer.Option(help="Draft tree: chain:5, star:4, paths:4x5, of:3x2x1, best:20x5 or auto.")]
DraftLength = Annotated[str, typer.Option(help="Number of draft tokens, short for --tree chain:N; or auto.")]
DraftTemperature = Annotated[float | None, typer.Option(help="Of the draft; by default the target's, or tuned.")]
DraftTopK = Annotated[int | None, typer.Option(help="Of the draft; the target's by default.")]
Reproducible = Annotated[
    bool, typer.Option("--reproducible", help="Same target and seed, same text, whatever the draft.")
]
Lossy = Annotated[str | None, typer.Option(help="Trade exactness for speed: lenience:0.8, typical, ...")]

# Of the text
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", "-n", help="Maximum length of the text.")]
Stop = Annotated[list[str] | None, typer.Option(help="Stop before this text; may be repeated.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Continue past the model's end token.")]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same text.")]
