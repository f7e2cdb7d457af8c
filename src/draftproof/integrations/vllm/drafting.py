"""Draft tokens in vLLM: their noise is by request and by step, and their laws are kept for verification.

Model runner V1 draws draft tokens without looking at seeds. V2 keys them by seed and position (until vLLM 0.33), so
that a position drafted again meets the same numbers again; the token rule never looks at a token twice, but block
verification does, and its texts are then off.

Verification needs the sum of every row that a draft token was drawn from. Where V2 draws draft tokens on a GPU, our
kernel does it in vLLM's place and keeps these sums, so that the rows are not all read again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from draftproof import kernels
from draftproof.integrations.vllm.layout import SlotLaws
from draftproof.kernels.lib.recording import Recordings

GREEDY = 1e-5  # vLLM takes smaller temperatures for 0
SALT = 0x5851F42D4C957F2D
# The speculators of V2 that draw one token after another, and nowhere else; by the names of vLLM 0.31 and from 0.32 on
SUCCESSIVE = {
    "AutoRegressiveSpeculator", "PlainDraftModelSpeculator", "StandaloneARSpeculator", "TargetDependentARSpeculator",
}  # fmt: skip
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


_kept: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # the laws of the draft rows [M, K, V] of speculators


def laws_of(rows: Tensor | None) -> SlotLaws | None:
    """The laws of a speculator's rows, if they are kept."""
    return None if rows is None or rows not in _kept else _kept[rows]


def keep_laws(rows: Tensor) -> None:
    """Keep the laws of a speculator's rows from now on."""
    _kept[rows] = SlotLaws.of(rows)


def keeps_laws(speculator: Any) -> bool:
    """Whether the laws of a speculator's drafts can be kept: each token must be drawn when its row is made."""
    rows = speculator.draft_logits
    return rows is not None and rows.is_cuda and kernels.available(rows.device) and is_successive(type(speculator))


def is_successive(kind: type) -> bool:
    """Whether speculators of this kind draw one token after another."""
    return not SUCCESSIVE.isdisjoint(each.__name__ for each in kind.__mro__)


def lawful(gumbel_sample: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`gumbel_sample` as speculators are to call it: for rows whose laws are kept, our kernel draws."""
    signature, recordings = inspect.signature(gumbel_sample), Recordings()

    def draftproof_gumbel_sample(*arguments: Any, **named: Any) -> Tensor:
        values = signature.bind(*arguments, **named).arguments
        rows: Tensor | None = values.get("logits_cache")
        if rows is None or (laws := laws_of(rows)) is None:
            return gumbel_sample(*arguments, **named)
        logits, depth = values["logits"], values["logits_cache_col"]
        others = values.get("logits_cache_source")  # rows to be kept in the place of those that are drawn from
        if others is not None or depth.numel() != 1 or not _alike(logits, rows):
            del _kept[rows]
            return gumbel_sample(*arguments, **named)
        from draftproof.kernels.slots.draw import draw

        slot, temperature = values["expanded_idx_mapping"], values["temperature"]
        given = (logits, slot, temperature, values["seed"], values["pos"], depth, rows)
        if logits.is_cuda and torch.cuda.is_current_stream_capturing():  # a CUDA graph would outlive the recordings
            return draw(*given, laws)
        (tokens,) = recordings("draw", lambda: (draw(*given, laws),), (*given, *laws))
        return tokens

    return draftproof_gumbel_sample


def _alike(logits: Tensor, rows: Tensor) -> bool:
    """Whether rows of logits are what is kept of them, and packed."""
    return logits.shape[-1] == rows.shape[-1] and logits.dtype == rows.dtype and logits.stride(-1) == 1
