"""The noise of vLLM's drafters: by request and by step, so that seeds give the same text and no number comes twice.

Model runner V1 draws draft tokens without looking at seeds. V2 keys them by seed and position (until vLLM 0.33), so
that a position drafted again meets the same numbers again; the token rule never looks at a token twice, but block
verification does, and its texts are then off.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

GREEDY = 1e-5  # vLLM takes smaller temperatures for 0
SALT = 0x5851F42D4C957F2D
ODD = -7046029254386353131  # 0x9E3779B97F4A7C15: a product with it differs from length to length


class SeededDraws:
    """Draft tokens of V1 by the generators of the requests that have one."""

    def __init__(self) -> None:
        self._streams: dict[int, torch.Generator] = {}

    def restart(self) -> None:
        """A new draft begins."""
        self._streams.clear()

    def draw(self, logits: Tensor, sampling: Any) -> tuple[Tensor, Tensor]:
        """The next token [B] of each draft and the laws [B, V] it is drawn from: softmax at the temperature."""
        temperature = sampling.temperature
        greedy = temperature < GREEDY
        law = (logits / torch.where(greedy, 1, temperature)[:, None]).softmax(-1, dtype=torch.float32)
        races = torch.empty_like(law).exponential_()
        for index, generator in sampling.generators.items():
            if index not in self._streams:
                self._streams[index] = _branch(generator)
            races[index].exponential_(generator=self._streams[index])
        return torch.where(greedy, law.argmax(-1), (law / races).argmax(-1)), law


def _branch(generator: torch.Generator) -> torch.Generator:
    """A generator that follows from where another one is now, without moving it.

    Verification draws from the other one next. So a draft depends on the request's own steps alone, not on how often
    vLLM has asked for drafts that it threw away, as it does while a prompt is read.
    """
    if generator.device.type == "cpu":
        ahead = generator.clone_state()
        key = int(torch.randint(0, 2**63 - 1, (), generator=ahead))
    else:  # known to the host
        key = generator.initial_seed() * 6364136223846793005 + generator.get_offset()
    return torch.Generator(generator.device).manual_seed((key ^ SALT) % 2**63)


def seeded(original: Callable[..., Any], draws: SeededDraws) -> Callable[..., Any]:
    """`compute_probs_and_sample_next_token` as it is to be."""

    def compute(logits: Tensor, sampling_metadata: Any, use_fp64_gumbel: bool = False) -> Any:
        known = sampling_metadata.temperature is not None and len(logits) == len(sampling_metadata.temperature)
        if sampling_metadata.all_greedy or not sampling_metadata.generators or not known:
            return original(logits, sampling_metadata, use_fp64_gumbel)
        return draws.draw(logits, sampling_metadata)

    return compute


def salted(propose: Callable[..., Any]) -> Callable[..., Any]:
    """A V2 speculator's `propose` with seeds that differ from step to step."""
    signature = inspect.signature(propose)

    def draftproof_propose(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        batch, values = bound.arguments["input_batch"], bound.arguments
        values["seeds"] = by_length(
            values["seeds"], batch.idx_mapping, batch.seq_lens[: len(batch.idx_mapping)] - values["num_rejected"]
        )
        return propose(*bound.args, **bound.kwargs)

    return draftproof_propose


def by_length(seeds: Tensor, slot: Tensor, length: Tensor) -> Tensor:
    """Seeds [M] in which those of the requests in slots [B] are mixed with the lengths of their texts [B]."""
    index = slot.to(torch.int64)
    return seeds.index_copy(0, index, seeds[index] ^ (length.to(torch.int64) * ODD))
