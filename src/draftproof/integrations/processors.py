"""Convert transformers' processors for one text: to our own controls where they are equal, else as they are."""

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

# Processors with the same law as our controls, ties included, in the order in which both apply them.
SAME = {TemperatureLogitsWarper: "temperature", TopKLogitsWarper: "top_k", TopPLogitsWarper: "top_p"}
SAME |= {MinPLogitsWarper: "min_p"}
ORDER = list(SAME)


class PaddedPrompt(NamedTuple):
    """A prompt with its padding, as transformers passes it to processors and stopping criteria."""

    prompt: tuple[int, ...]  # padded
    length: int  # of the prompt without padding

    @property
    def is_padded(self) -> bool:
        return len(self.prompt) > self.length

    def of(self, function: Any) -> Any:
        return WithPadding(function, self) if self.is_padded else function


class WithPadding(NamedTuple):
    """A processor or stopping criterion that gets the text with its padding."""

    function: Callable[..., Any]
    view: PaddedPrompt

    def __call__(self, ids: torch.Tensor, scores: Any) -> Any:
        padded = torch.tensor([self.view.prompt], device=ids.device, dtype=ids.dtype)
        return self.function(torch.cat([padded, ids[:, self.view.length :]], dim=1), scores)


class OnDevice(NamedTuple):
    """A processor on the prompt's device, where it keeps its tensors; some drafters have their scores on the CPU."""

    function: Callable[..., torch.Tensor]
    device: torch.device

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if scores.device == self.device:
            return self.function(ids, scores)
        return self.function(ids.to(self.device), scores.to(self.device)).to(scores.device)


def samplings_of(
    processors: Sequence[Any],
    view: PaddedPrompt,
    sampled: bool,
    draft_temperature: float | None = None,
    device: torch.device | None = None,
) -> tuple[Sampling, Sampling]:
    """The Sampling that equals these processors followed by a softmax, and the one for the draft.

    device    that the processors' tensors are on; None: that of the scores they are given
    """
    settings, others = _controls(list(processors))
    if others and _is_repetition(others[0]) and not view.is_padded:  # transformers counts padding as text
        settings["repetition_penalty"] = others.pop(0).penalty
    heat = settings.pop("temperature", 1.0)
    heat = heat if sampled else 0.0
    placed = others if device is None else [OnDevice(one, device) for one in others]
    settings["processors"] = tuple(map(view.of, placed))
    sampling = Sampling(**settings, temperature=heat)
    if draft_temperature is None or not sampled:
        return sampling, sampling
    return sampling, Sampling(**settings, temperature=heat * draft_temperature)


def _controls(processors: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Split off the last processors that equal our controls in our order, by name, from those before them.

    Our controls apply after all processors, so nothing may follow a processor that becomes a control.
    """
    if processors and type(processors[-1]) is LogitNormalization:  # our softmax normalises anyway
        processors.pop()
    controls: dict[str, Any] = {}
    last = len(ORDER)
    while (
        processors
        and type(processors[-1]) in SAME
        and ORDER.index(type(processors[-1])) < last
        and _is_plain(processors[-1])
    ):
        last = ORDER.index(type(processors[-1]))
        name = SAME[type(processors[-1])]
        controls[name] = getattr(processors.pop(), name)
    return controls, processors


def _is_plain(warper: Any) -> bool:
    """Whether all its settings but the number have their defaults."""
    cuts, keeps = getattr(warper, "filter_value", -torch.inf), getattr(warper, "min_tokens_to_keep", 1)
    return cuts == -torch.inf and keeps == 1 and getattr(warper, SAME[type(warper)]) > 0


def _is_repetition(processor: Any) -> bool:
    plain = type(processor) is RepetitionPenaltyLogitsProcessor
    return plain and not getattr(processor, "prompt_ignore_length", None)


def of_row(processor: Any, row: int, input_ids: torch.Tensor, config: Any) -> Any:
    """The processor for one row: those that depend on the row in the batch are created again for that text."""
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
