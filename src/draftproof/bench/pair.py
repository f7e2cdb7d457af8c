"""Load target and drafter of a benchmark, for our engine and for transformers, and the prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from draftproof import prompts as texts
from draftproof.bench import inflate as inflation
from draftproof.bench.turns import Ids
from draftproof.engine.arguments import encode
from draftproof.errors import DraftproofError
from draftproof.models import DRAFTERS, check_drafters, drafter, load, precision, read
from draftproof.models.base import Model
from draftproof.models.devices import choose_device
from draftproof.models.drafters import head
from draftproof.models.drafters.shared_tokens import fit
from draftproof.models.hf import HFModel
from draftproof.models.llama import head as headnet
from draftproof.models.llama.rebuild import rebuild


class Pair(NamedTuple):
    """Target and drafter for both sides; in the same precision they share their weights."""

    target: HFModel
    draft: Model | None
    network: Any
    assistant: Any  # the drafter's network; None where it has none
    device: str
    dtype: str


def open_pair(
    target: str, draft: str, dtype: str, inflate: str | None = None, blur: float = 0.0, device: str | None = None
) -> Pair:
    """Load both models; transformers' side is float32 where ours is int8.

    inflate   shape of `draftproof.bench.inflate` for the target: the same function at the cost of a larger model
    blur      share of noise in the drafter's weights, which lowers its acceptance rate
    """
    if not 0 <= blur <= 1:
        raise DraftproofError(f"blur must be from 0 to 1, not {blur}")
    check_drafters(draft)
    named = draft in DRAFTERS or draft.startswith("text:") or "|" in draft
    no_model = named or head.is_head(Path(draft))
    if blur and (no_model or dtype == "int8"):
        raise DraftproofError(f"blur needs a draft model with float weights, not {draft!r} in {dtype}: leave it out")
    if inflate and dtype == "int8":
        raise DraftproofError("inflate does not work with int8 weights: choose another dtype")
    place = choose_device(device, dtype)
    if inflate:
        small, tokenizer = read(target, torch.float32)
        theirs = inflation.inflate(small, inflation.shape(inflate), precision(dtype), place)
        ours = HFModel(rebuild(theirs), tokenizer, f"{target} as {inflate}")  # the weights are shared
    else:
        ours = load(target, dtype=dtype, device=place)
        theirs = as_transformers(ours, target, dtype)
    kind = str(ours.network.device.type)
    if inflate and draft == "head":
        inflated = inflation.inflate_head(
            headnet.load(head.SHIPPED), small.config.num_hidden_layers, inflation.shape(inflate)
        )
        return Pair(ours, head.HeadModel(ours, inflated), theirs, None, kind, dtype)
    if no_model:
        return Pair(ours, drafter(draft, ours), theirs, None, kind, dtype)
    if blur:
        network, tokenizer = read(draft, precision(dtype))
        inflation.blur(network, blur)
        guesser = HFModel(rebuild(network.to(place)), tokenizer, draft)
    else:
        guesser = load(draft, dtype=dtype, device=place)
    fitted = fit(ours, guesser)
    assistant = None
    if fitted is guesser:  # transformers needs a shared vocabulary
        assistant = _read(network) if blur else as_transformers(guesser, draft, dtype)
    return Pair(ours, fitted, theirs, assistant, kind, dtype)


def as_transformers(model: HFModel, name: str, dtype: str) -> Any:
    """The network for transformers' generate: ours where it is transformers' own, float32 where ours is int8."""
    if isinstance(model.network, PreTrainedModel) and dtype != "int8":
        return _read(model.network)
    precision = torch.float32 if dtype == "int8" else getattr(torch, dtype)
    return _read(read(name, precision)[0].to(model.network.device).eval())


def _read(network: Any) -> Any:
    """Touch all weights: they are memory-mapped, and the first candidate's memory must not include reading them."""
    for weight in network.parameters():
        weight.sum()
    return network


def prompts(pair: Pair, path: Path | None, by: str | None) -> dict[str, list[Ids]]:
    """Token ids of the prompts of a file, or of the built-in ones, grouped by a field of the file."""
    words = texts.PROMPTS if path is None else texts.read(path)
    if by is None:
        return {"": [encode(pair.target, prompt) for prompt in words]}
    if path is None or path.suffix != ".jsonl":
        raise DraftproofError("prompts can only be grouped by a field of a .jsonl file: give one with --prompts")
    groups: dict[str, list[Ids]] = {}
    lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    for prompt, line in zip(words, lines, strict=True):
        entry = json.loads(line)
        if by not in entry:
            raise DraftproofError(f"a line of {path} has no field {by!r}: choose from {', '.join(entry)}")
        groups.setdefault(str(entry[by]), []).append(encode(pair.target, prompt))
    return groups


def rounds(ids: Sequence[Ids], batch: int, repeat: int) -> list[list[Ids]]:
    """Prompts for each round; they repeat when there are too few.

    >>> rounds([(1,), (2,), (3,)], batch=2, repeat=2)
    [[(1,), (2,)], [(3,), (1,)]]
    """
    endless = cycle(ids)
    return [list(islice(endless, batch)) for _ in range(repeat)]
