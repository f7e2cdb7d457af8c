"""What the plug-in relies on in vLLM's code, and whether a version has it.

vLLM changes from release to release. A version that differs in one of these names is declined with one line, instead
of failing in the middle of a request.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Find = Callable[[str], "tuple[str, ...] | None"]  # the parameters or fields of "module:name", None if it is not there


class Needed(NamedTuple):
    """Names that a function has to take, or a class has to have."""

    names: tuple[str, ...]
    how: str = "among"  # "among": in any order; "first": these before all others; "all": these and no others

    def holds(self, found: tuple[str, ...]) -> bool:
        """Whether parameters or fields that were found will do."""
        if self.how == "among":
            return set(self.names) <= set(found)
        return found == self.names if self.how == "all" else found[: len(self.names)] == self.names


PARAMS = "vllm.sampling_params:SamplingParams"
SHARED = {
    PARAMS: Needed(
        (
            "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
            "logit_bias", "allowed_token_ids", "min_tokens", "thinking_token_budget", "extra_args",
            "structured_outputs", "bad_words",
        )
    ),
    f"{PARAMS}._validate_spec_decode": Needed(("self", "speculative_config"), "all"),
    "vllm.v1.worker.worker_base:WorkerBase.__init__": Needed(("self", "vllm_config", "local_rank", "rank"), "first"),
    "vllm.v1.worker.worker_base:WorkerBase.compile_or_warm_up_model": Needed(("self",), "all"),
}  # fmt: skip

SAMPLE = "vllm.v1.sample"
V1 = SHARED | {
    f"{SAMPLE}.rejection_sampler:RejectionSampler.__init__": Needed(("self", "sampler", "spec_config"), "first"),
    f"{SAMPLE}.rejection_sampler:RejectionSampler.forward": Needed(
        ("self", "metadata", "draft_probs", "logits", "sampling_metadata"), "all"
    ),
    f"{SAMPLE}.rejection_sampler:RejectionSampler.apply_logits_processors": Needed(
        ("self", "logits", "sampling_metadata", "metadata"), "all"
    ),
    f"{SAMPLE}.rejection_sampler:RejectionSampler._get_logprobs_tensors": Needed(
        (
            "self", "max_num_logprobs", "metadata", "logits", "target_logits", "bonus_logits", "sampled_token_ids",
        ),
        "all",
    ),
    f"{SAMPLE}.sampler:Sampler.forward": Needed(
        ("self", "logits", "sampling_metadata", "predict_bonus_token"), "first"
    ),
    f"{SAMPLE}.sampler:Sampler.apply_logits_processors": Needed(
        ("self", "logits", "sampling_metadata", "predict_bonus_token"), "all"
    ),
    f"{SAMPLE}.metadata:SamplingMetadata": Needed(
        (
            "temperature", "all_greedy", "top_p", "top_k", "generators", "max_num_logprobs", "no_penalties",
            "allowed_token_ids_mask", "bad_words_token_ids", "logitsprocs", "logprob_token_ids",
            "thinking_budget_state_holder",
        )
    ),
    "vllm.v1.spec_decode.metadata:SpecDecodeMetadata": Needed(
        ("draft_token_ids", "num_draft_tokens", "target_logits_indices", "bonus_logits_indices")
    ),
    f"{SAMPLE}.logits_processor:build_logitsprocs": Needed(
        ("vllm_config", "device", "is_pin_memory", "is_pooling_model", "custom_logitsprocs"), "all"
    ),
    f"{SAMPLE}.logits_processor.builtin:process_dict_updates": Needed(
        ("req_entries", "batch_update", "new_state"), "all"
    ),
    f"{SAMPLE}.ops.topk_topp_sampler:apply_top_k_top_p": Needed(("logits", "k", "p"), "first"),
    "vllm.v1.spec_decode.llm_base_proposer:compute_probs_and_sample_next_token": Needed(
        ("logits", "sampling_metadata", "use_fp64_gumbel"), "all"
    ),
    "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.propose": Needed(("self",), "first"),
}  # fmt: skip

GPU = "vllm.v1.worker.gpu"
V2 = SHARED | {
    f"{GPU}.spec_decode.rejection_sampler:RejectionSampler.__init__": Needed(
        ("self", "sampler", "spec_config", "device"), "first"
    ),
    f"{GPU}.spec_decode.rejection_sampler:RejectionSampler.__call__": Needed(
        ("self", "logits", "input_batch"), "first"
    ),
    f"{GPU}.spec_decode.rejection_sampler:RejectionSampler._verify": Needed(
        ("logits", "draft_logits", "draft_sampled", "pos", "cu_num_logits", "idx_mapping", "idx_mapping_np")
    ),
    f"{GPU}.spec_decode.rejection_sampler_utils:rejection_sample": Needed(
        (
            "target_logits", "draft_logits", "draft_sampled", "cu_num_logits", "pos", "idx_mapping",
            "expanded_idx_mapping", "expanded_local_pos", "temperature", "seed", "num_speculative_steps",
        ),
        "first",
    ),
    f"{GPU}.sample.sampler:Sampler.add_request": Needed(("self", "req_idx", "sampling_params"), "all"),
    f"{GPU}.sample.gumbel:gumbel_sample": Needed(
        (
            "logits", "expanded_idx_mapping", "temperature", "seed", "pos", "apply_temperature", "is_drafting",
            "logits_cache", "logits_cache_col",
        ),
        "first",
    ),
    f"{GPU}.spec_decode:init_speculator": Needed(("vllm_config", "device"), "first"),
    f"{GPU}.spec_decode.speculator:BaseSpeculator.propose": Needed(
        ("self", "input_batch", "num_sampled", "num_rejected", "temperature", "seeds")
    ),
    f"{GPU}.input_batch:InputBatch": Needed(("idx_mapping", "idx_mapping_np", "cu_num_logits_np", "seq_lens")),
}  # fmt: skip


def complaint(needed: Mapping[str, Needed], find: Find) -> str:
    """The first thing that does not fit, in words; empty if all does."""
    for name, asked in needed.items():
        found = find(name)
        if found is None:
            return f"{name} is missing"
        if not asked.holds(found):
            return f"{name} has ({', '.join(found)}), not ({', '.join(asked.names)})"
    return ""


def installed(name: str) -> tuple[str, ...] | None:
    """The parameters or fields of "module:name" in the vLLM that is installed."""
    module, _, path = name.partition(":")
    found: Any
    try:
        found = importlib.import_module(module)
        for part in path.split("."):
            found = vars(found)[part]
    except (ImportError, KeyError):
        return None
    if isinstance(found, type):
        return tuple(found.__annotations__)
    return tuple(inspect.signature(inspect.unwrap(found)).parameters)
