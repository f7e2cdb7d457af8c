"""Verification in vLLM's model runner V1, which is the CPU's: `RejectionSampler.forward`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
    process_dict_updates,
)
from vllm.v1.sample.logits_processor.interface import LogitsProcessor
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from draftproof.integrations.vllm.layout import FlatDrafts, to_device
from draftproof.integrations.vllm.requests import Mix, RequestChoice, choice, mix
from draftproof.integrations.vllm.verification import ServedStep, Verification, controls_of, of_one_width
from draftproof.kernels import ChainRule, Controls, NoiseKeys

PLAIN = Mix(raw=True, truncates=0, greedy=False, whole=True)


class ChoiceProcessor(LogitsProcessor):  # type: ignore[misc]
    """Keeps the choices of a batch's requests. vLLM tells its processors who comes, goes and moves; logits are left.

    A batch that has it is verified by us.
    """

    def __init__(self, default: str, verification: Verification) -> None:
        self.default, self.verification = default, verification
        self.choices: dict[int, RequestChoice] = {}

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: Any) -> None:
        process_dict_updates(self.choices, batch_update, lambda params, _, __: choice(params, self.default))

    def apply(self, logits: Tensor) -> Tensor:
        return logits


def processors(default: str, writes: bool, vllm_config: Any, device: torch.device, pin: bool) -> LogitsProcessors:
    """vLLM's own processors, of which it drops two when it speculates, and ours."""
    kept = (MinTokensLogitsProcessor, LogitBiasLogitsProcessor, MinPLogitsProcessor)
    ours = ChoiceProcessor(default, Verification(torch.device(device), writes))
    return LogitsProcessors([*(kind(vllm_config, device, pin) for kind in kept), ours])


class Found(NamedTuple):
    """The processors of a batch, as far as verification has to look into them."""

    verification: Verification
    choices: list[RequestChoice]
    mix: Mix
    min_p: MinPLogitsProcessor | None
    bias: LogitBiasLogitsProcessor | None

    @staticmethod
    def of(sampling: Any, batch: int) -> Found | None:
        """Those of a batch's sampling metadata; None where it is not ours, as when vLLM warms up."""
        by_kind = {type(each): each for each in sampling.logitsprocs.all}
        if ChoiceProcessor not in by_kind:
            return None
        ours, min_p, bias = (by_kind[kind] for kind in (ChoiceProcessor, MinPLogitsProcessor, LogitBiasLogitsProcessor))
        choices = [ours.choices[index] for index in range(batch)]
        return Found(
            ours.verification,
            choices,
            mix(choices),
            min_p if min_p.min_p_count else None,
            bias if bias.biases else None,
        )


def forward(sampler: Any, found: Found, metadata: Any, draft_probs: Any, logits: Any, sampling: Any) -> Any:
    """One step, in the place of `RejectionSampler.forward`."""
    flat = FlatDrafts.of(metadata.num_draft_tokens, logits.device)
    temperature = torch.zeros_like(flat.first, dtype=torch.float32)
    if not sampling.all_greedy:
        temperature = sampling.temperature
    processed: Tensor | None = None
    if found.mix.raw and not sampler.is_processed_logprobs_mode and not _edits(sampling):
        rows, controls = logits, _fused_controls(sampling, found, temperature, logits.shape[-1])
    else:
        rows = processed = _processed(sampler, metadata, logits, sampling, found, flat, temperature)
        controls = controls_of((temperature != 0).to(torch.float32), found.mix)
    target = flat.target(rows)
    draft = None if draft_probs is None or sampling.all_greedy else flat.draft(_log(draft_probs, logits, flat, found))
    target, draft = of_one_width(target, draft)
    tokens = flat.tokens(metadata.draft_token_ids)
    rule = _rules(found.choices, temperature, draft is not None)
    plain = controls_of(torch.ones_like(temperature), PLAIN)  # the drafter's probabilities are its law
    noise = _noise(metadata.num_draft_tokens, sampling.generators, flat.first)
    step = ServedStep(target, draft, tokens, controls, plain, rule, noise)
    out = found.verification(step)[0].tokens.to(torch.int32)
    found.verification.counters.publish()
    out = _with_undrafted(sampler, metadata, logits, sampling, out)
    logprobs = None
    if sampling.max_num_logprobs is not None:
        source = logits if processed is None else processed if sampler.is_processed_logprobs_mode else logits
        logprobs = sampler._get_logprobs_tensors(
            sampling.max_num_logprobs,
            metadata,
            logits,
            source[metadata.target_logits_indices].to(torch.float32),
            source[metadata.bonus_logits_indices].to(torch.float32),
            out,
        )
    return SamplerOutput(sampled_token_ids=out, logprobs_tensors=logprobs)


def _edits(sampling: Any) -> bool:
    """Whether a control changes logits in ways that the kernels do not know."""
    holder = sampling.thinking_budget_state_holder
    return bool(
        not sampling.no_penalties
        or sampling.allowed_token_ids_mask is not None
        or sampling.bad_words_token_ids
        or (holder is not None and holder.has_tracked_requests())
    )


def _fused_controls(sampling: Any, found: Found, temperature: Tensor, vocabulary: int) -> Controls:
    """The controls as columns; min_p's column has the batch's size only while somebody uses it."""
    min_p = None if found.min_p is None else found.min_p.min_p[:, 0]
    if sampling.all_greedy:
        return controls_of(temperature, found.mix)
    return controls_of(
        temperature, found.mix, top_k=sampling.top_k, top_p=sampling.top_p, min_p=min_p, vocabulary=vocabulary
    )


def _processed(
    sampler: Any, metadata: Any, logits: Tensor, sampling: Any, found: Found, flat: FlatDrafts, temperature: Tensor
) -> Tensor:
    """[R, V]: all rows with vLLM's controls in vLLM's order, as without drafts.

    Rows after the last draft token first, which is what brings the states of its processors up to date.
    """
    rows = logits.to(torch.float32, copy=True)
    after, before = metadata.bonus_logits_indices, metadata.target_logits_indices
    rows[after] = sampler.sampler.apply_logits_processors(rows[after], sampling, predict_bonus_token=True)
    drafted = rows[before]
    if found.bias is not None:  # before penalties, which scale
        drafted += _bias(found.bias, len(flat.first), logits.shape[-1])[flat.request[before]]
    rows[before] = sampler.apply_logits_processors(drafted, sampling, metadata)
    if sampling.all_greedy:
        return rows
    rows /= torch.where(temperature == 0, 1, temperature)[flat.request, None]
    if found.min_p is not None:
        laws = rows.softmax(-1)
        least = laws.amax(-1, keepdim=True) * found.min_p.min_p[flat.request]
        rows.masked_fill_(laws < least, -torch.inf)
    top_k, top_p = (None if each is None else each[flat.request] for each in (sampling.top_k, sampling.top_p))
    return torch.as_tensor(apply_top_k_top_p(rows, top_k, top_p))


def _bias(processor: Any, batch: int, vocabulary: int) -> Tensor:
    """[B, V]: what logit_bias adds."""
    table = torch.zeros(batch, vocabulary, device=processor.bias_tensor.device)
    table[processor.logits_slice] = processor.bias_tensor
    return table


def _log(probabilities: Tensor, logits: Tensor, flat: FlatDrafts, found: Found) -> Tensor:
    """[D, V]: the drafter's laws as logits.

    vLLM ends a draft before the first token that a grammar forbids. So the tokens that are left were drawn from what
    the grammar allows: the law is cut down to it.
    """
    rows = probabilities.to(torch.float32).log()
    structured = [each.structured for each in found.choices]
    if any(structured):
        owner = flat.place // max(flat.width, 1)
        target = flat.first[owner] + flat.place % max(flat.width, 1)
        width = min(rows.shape[-1], logits.shape[-1])
        masked = to_device(structured, rows.device)[owner, None] & torch.isneginf(logits[target, :width])
        rows[:, :width].masked_fill_(masked, -torch.inf)
    return rows


def _rules(choices: list[RequestChoice], like: Tensor, laws: bool) -> Tensor:
    """[B] int32: each request's rule, or the only one for draft tokens without laws."""
    asked = [each.rule if laws else ChainRule.ONEHOT for each in choices]
    if len(set(asked)) == 1:
        return torch.full_like(like, asked[0], dtype=torch.int32)
    return to_device(np.array(asked, np.int32), like.device)


def _noise(lengths: list[int], generators: dict[int, torch.Generator], like: Tensor) -> NoiseKeys:
    """Fresh keys for each step, from the generators of requests that have one: no number is ever used again."""
    most = 2**63 - 1
    seeds = torch.randint(0, most, like.shape, dtype=torch.int64, device=like.device)
    for index, generator in generators.items():
        if lengths[index]:
            seeds[index] = torch.randint(0, most, (), dtype=torch.int64, device=like.device, generator=generator)
    zero = torch.zeros_like(seeds)
    return NoiseKeys(seeds, zero, zero)


def _with_undrafted(sampler: Any, metadata: Any, logits: Tensor, sampling: Any, out: Tensor) -> Tensor:
    """Requests without a draft are sampled by vLLM: with a seed, what they get does not depend on who else drafts."""
    alone = [index for index, length in enumerate(metadata.num_draft_tokens) if not length]
    if not alone:
        return out
    generators = {index: sampling.generators[index] for index in alone if index in sampling.generators}
    quiet = replace(sampling, max_num_logprobs=None, logprob_token_ids=None, generators=generators)
    sampled = sampler.sampler(logits[metadata.bonus_logits_indices], quiet, predict_bonus_token=True).sampled_token_ids
    index = to_device(alone, out.device)
    out[index, 0] = sampled[index, 0].to(out.dtype)
    return out


def install(original: Callable[..., Any]) -> Any:
    """`RejectionSampler.forward` as it is to be."""

    def draftproof_forward(self: Any, metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any) -> Any:
        found = Found.of(sampling_metadata, len(metadata.num_draft_tokens))
        if found is None:
            return original(self, metadata, draft_probs, logits, sampling_metadata)
        return forward(self, found, metadata, draft_probs, logits, sampling_metadata)

    return draftproof_forward
