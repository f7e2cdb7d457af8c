"""Options that several commands have, with the same words for the same thing."""

from typing import Annotated

import typer

AnyTarget = Annotated[str, typer.Option(help="smollm2, tiny, a folder, a .gguf file or a Hub id.")]
Precision = Annotated[str, typer.Option(help="Precision of the weights.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 is off.")]
TopP = Annotated[float, typer.Option(help="Keep the likeliest tokens that hold this mass.")]
MinP = Annotated[float, typer.Option(help="Keep tokens at least this share as likely as the best.")]
RepetitionPenalty = Annotated[float, typer.Option(help="Over prompt and output; 1 is off.")]
Raw = Annotated[bool, typer.Option("--raw", help="Do not use the model's chat template.")]
