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
