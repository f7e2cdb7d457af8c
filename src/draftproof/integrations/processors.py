"""transformers' processors for one text: controls of ours where they are the same, else shown what they see there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from transformers.generation.logits_process import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    LogitNormalization,
    MinPLogitsWarper,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from draftproof.sampling import Sampling

# Of one law with ours, ties included, in the order in which both apply them: name there and here.
SAME = {TemperatureLogitsWarper: "temperature", TopKLogitsWarper: "top_k", TopPLogitsWarper: "top_p"}
SAME |= {MinPLogitsWarper: "min_p"}
ORDER = list(SAME)


class View(NamedTuple):
    """How transformers sees a text: with its padding, which processors and criteria count and read."""

    prompt: tuple[int, ...]  # padded
    length: int  # of the prompt without padding

    @property
    def is_padded(self) -> bool:
        return len(self.prompt) > self.length

    def of(self, function: Any) -> Any:
        return Padded(function, self) if self.is_padded else function


class Padded(NamedTuple):
    """A processor or criterion that is shown a text with its padding."""

    function: Callable[..., Any]
    view: View

    def __call__(self, ids: torch.Tensor, scores: Any) -> Any:
        padded = torch.tensor([self.view.prompt], device=ids.device, dtype=ids.dtype)
        return self.function(torch.cat([padded, ids[:, self.view.length :]], dim=1), scores)


def samplings_of(
    processors: Sequence[Any], view: View, sampled: bool, draft_temperature: float | None = None
) -> tuple[Sampling, Sampling]:
    """The law that these processors make, and no other: what they leave is put through a softmax; and the guesses'."""
    settings, left = _controls(list(processors))
    if left and _is_repetition(left[0]) and not view.is_padded:  # there the padding counts as said
        settings["repetition_penalty"] = left.pop(0).penalty
    heat = settings.pop("temperature", 1.0)
    heat = heat if sampled else 0.0
    settings["processors"] = tuple(map(view.of, left))
    sampling = Sampling(**settings, temperature=heat)
    if draft_temperature is None or not sampled:
        return sampling, sampling
    return sampling, Sampling(**settings, temperature=heat * draft_temperature)


def _controls(left: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """The last processors as far as they are controls of ours in our order, by name; and those before them.

    Ours apply after all processors, so nothing may come behind what becomes one.
    """
    if left and type(left[-1]) is LogitNormalization:  # a softmax does that
        left.pop()
    found: dict[str, Any] = {}
    last = len(ORDER)
    while left and type(left[-1]) in SAME and ORDER.index(type(left[-1])) < last and _is_plain(left[-1]):
        last = ORDER.index(type(left[-1]))
        name = SAME[type(left[-1])]
        found[name] = getattr(left.pop(), name)
    return found, left


def _is_plain(warper: Any) -> bool:
    """Whether it was left as it is by default, but for its number."""
    cuts, keeps = getattr(warper, "filter_value", -torch.inf), getattr(warper, "min_tokens_to_keep", 1)
    return cuts == -torch.inf and keeps == 1 and getattr(warper, SAME[type(warper)]) > 0


def _is_repetition(processor: Any) -> bool:
    plain = type(processor) is RepetitionPenaltyLogitsProcessor
    return plain and not getattr(processor, "prompt_ignore_length", None)


def of_row(processor: Any, row: int, input_ids: torch.Tensor, config: Any) -> Any:
    """Processors that know a text by its row in the batch, made anew for it: here each text is judged alone."""
    if len(input_ids) == 1:
        return processor
    kind, prompt = type(processor), input_ids[row : row + 1]
    if kind is EncoderRepetitionPenaltyLogitsProcessor:
        return kind(config.encoder_repetition_penalty, prompt)
    if kind is EncoderNoRepeatNGramLogitsProcessor:
        return kind(config.encoder_no_repeat_ngram_size, prompt)
    if kind is PrefixConstrainedLogitsProcessor:
        return kind(lambda _, ids: processor._prefix_allowed_tokens_fn(row, ids), 1)
    return processor
