"""Options that several commands share."""

from typing import Annotated

import typer

AnyTarget = Annotated[str, typer.Option(help="smollm2, tiny, a folder, a .gguf file or a Hub id.")]
Precision = Annotated[str, typer.Option(help="Precision of the weights.")]
Temperature = Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 is off.")]
TopP = Annotated[float, typer.Option(help="Keep the likeliest tokens with this total probability; 1 is off.")]
MinP = Annotated[float, typer.Option(help="Keep tokens at least this many times as likely as the likeliest; 0 is off.")]
RepetitionPenalty = Annotated[float, typer.Option(help="Penalty on tokens of prompt and output; 1 is off.")]
Raw = Annotated[bool, typer.Option("--raw", help="Do not use the model's chat template.")]
Draft = Annotated[
    str, typer.Option(help="auto, head, ngram, cache, a model, text:MODEL, none, or several with commas.")
]
Verify = Annotated[str, typer.Option(help="A rule of `draftproof list`.")]
TreeShape = Annotated[str, typer.Option(help="Draft tree: chain:5, star:4, best:20x5 or auto.")]
DraftLength = Annotated[str, typer.Option(help="Number of draft tokens, short for --tree chain:N; or auto.")]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", "-n", help="Maximum length of the text.")]
TypicalP = Annotated[float, typer.Option(help="Keep the most typical tokens with this total probability; 1 is off.")]
PresencePenalty = Annotated[float, typer.Option(help="Penalty on tokens of the output; 0 is off.")]
FrequencyPenalty = Annotated[float, typer.Option(help="Penalty for each use in the output; 0 is off.")]
DraftTemperature = Annotated[float | None, typer.Option(help="Of the draft; the target's by default.")]
DraftTopK = Annotated[int | None, typer.Option(help="Of the draft; the target's by default.")]
Stop = Annotated[list[str] | None, typer.Option(help="Stop before this text; may be repeated.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Continue past the model's end token.")]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same text.")]
Reproducible = Annotated[
    bool, typer.Option("--reproducible", help="Same target and seed, same text, whatever the draft.")
]
Lossy = Annotated[str | None, typer.Option(help="Trade exactness for speed: lenience:0.8, typical, ...")]
