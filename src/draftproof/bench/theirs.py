"""The peers of a benchmark: transformers' `generate` plain, static and assisted; vLLM where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import torch
from transformers import CompileConfig

from draftproof.bench.turns import Candidate, Ids, Run, Workload, Write


def plain(network: Any, tokenizer: Any) -> Candidate:
    """transformers' `generate` with its defaults."""
    return _candidate("transformers plain", network, tokenizer, {})


def static(network: Any, tokenizer: Any) -> Candidate:
    """A static cache and a compiled model; on a GPU transformers compiles by default."""
    how: dict[str, Any] = {"cache_implementation": "static"}
    if network.device.type == "cpu":
        how["compile_config"] = CompileConfig()
        how["compile_config"]._compile_all_devices = True
    return _candidate("transformers static", network, tokenizer, how)


def samples(network: Any, tokenizer: Any) -> Candidate:
    """Several samples of one prompt in a batch."""

    def ready(workload: Workload) -> Write:
        how = {"max_new_tokens": workload.tokens, "num_return_sequences": workload.batch}
        return lambda prompts, temperature, seed: _write(network, tokenizer, prompts[:1], temperature, seed, how)

    return Candidate("transformers together", ready)


def assisted(network: Any, tokenizer: Any, assistant: Any, length: int) -> Candidate:
    """Assisted generation with as many draft tokens as ours; transformers supports batch size 1 only."""
    settings = assistant.generation_config
    settings.num_assistant_tokens, settings.num_assistant_tokens_schedule = length, "constant"
    settings.assistant_confidence_threshold = 0.0  # else it drafts fewer tokens where the assistant is unsure
    return _counted("transformers assisted", network, tokenizer, {"assistant_model": assistant})


def lookup(network: Any, tokenizer: Any, length: int) -> Candidate:
    """Prompt lookup: draft tokens from the text itself."""
    return _counted("transformers lookup", network, tokenizer, {"prompt_lookup_num_tokens": length})


def has_vllm() -> bool:
    return importlib.util.find_spec("vllm") is not None


def vllm(network: Any) -> Candidate:
    """vLLM with its default, a process of its own; it loads the model's folder in our precision."""

    def ready(workload: Workload) -> Write:
        from vllm import LLM, SamplingParams  # type: ignore[import-not-found,unused-ignore]

        engine = LLM(
            network.config._name_or_path,
            dtype=str(network.dtype).removeprefix("torch."),
            max_model_len=workload.longest + workload.tokens,
            max_num_seqs=workload.batch,
            gpu_memory_utilization=0.5,  # also of a CPU's memory; the default needs nearly all of it free
            disable_log_stats=True,
        )

        def write(prompts: Sequence[Ids], temperature: float, seed: int) -> Run:
            law = SamplingParams(temperature=temperature, max_tokens=workload.tokens, ignore_eos=True)
            inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
            count = sum(len(text.outputs[0].token_ids) for text in engine.generate(inputs, law, use_tqdm=False))
            return Run(count, count, {})

        return write

    return Candidate("vllm plain", ready)


def _candidate(name: str, network: Any, tokenizer: Any, how: dict[str, Any]) -> Candidate:
    def ready(workload: Workload) -> Write:
        whole = {"max_new_tokens": workload.tokens, **how}
        return lambda prompts, temperature, seed: _write(network, tokenizer, prompts, temperature, seed, whole)

    return Candidate(name, ready)


def _counted(name: str, network: Any, tokenizer: Any, how: dict[str, Any]) -> Candidate:
    """A candidate whose target calls are counted, because a call may give several tokens."""
    inner = _candidate(name, network, tokenizer, how)

    def ready(workload: Workload) -> Write:
        write = inner.open(workload)

        def counting(prompts: Sequence[Ids], temperature: float, seed: int) -> Run:
            calls = [0]
            hook = network.register_forward_pre_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
            try:
                return write(prompts, temperature, seed)._replace(calls=calls[0])
            finally:
                hook.remove()

        return counting

    return Candidate(name, ready)


def _write(
    network: Any, tokenizer: Any, prompts: Sequence[Ids], temperature: float, seed: int, how: dict[str, Any]
) -> Run:
    """Generate with transformers: prompts are padded on the left, and no token ends a text."""
    torch.manual_seed(seed)
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=network.device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=ids.device)
    warm = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    law = warm if temperature > 0 else {"do_sample": False}
    texts = network.generate(ids, attention_mask=mask, eos_token_id=None, pad_token_id=0, **law, **how)[:, width:]
    if tokenizer is not None:
        tokenizer.batch_decode(texts)  # ours are decoded too
    return Run(texts.numel(), texts.numel(), {})
