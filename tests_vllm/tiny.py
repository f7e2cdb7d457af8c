"""Tiny models for vLLM, engines with them in this process, and audits of what they write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

VOCABULARY = 32
PROMPTS = [[1, 2, 3, 1, 2], [7, 7, 8], [30, 4, 4, 4, 9, 30], [5, 6, 5, 6, 5]]


def save(path: Path, noise: float) -> None:
    """A Llama with random weights, the same every time but for this much noise."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=None, eos_token_id=None,
        initializer_range=0.25, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    network = LlamaForCausalLM(config).float()
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in network.parameters():
            weight += noise * weight.std() * torch.randn_like(weight)
    network.save_pretrained(path)


def ngram() -> dict[str, Any]:
    """Drafts from the text itself."""
    return {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}


def drafter(path: Path) -> dict[str, Any]:
    """Drafts drawn by a model."""
    return {
        "method": "draft_model",
        "model": str(path),
        "num_speculative_tokens": 4,
        "draft_sample_method": "probabilistic",
    }


def settings(path: Path, speculative: dict[str, Any] | None, verify: str | None, **named: Any) -> dict[str, Any]:
    """The arguments of `LLM`; `verify` None leaves verification to vLLM."""
    arguments = {
        "model": str(path), "skip_tokenizer_init": True, "max_model_len": 128, "dtype": "float32",
        "enforce_eager": True, "max_num_seqs": 256, "distributed_executor_backend": "uni", "seed": 0,
        "speculative_config": speculative, "disable_log_stats": False, "enable_prefix_caching": False,
        "additional_config": {} if verify is None else {"draftproof": {"verify": verify}},
    }  # fmt: skip
    return arguments | named


def engine(path: Path, speculative: dict[str, Any] | None, verify: str | None, **named: Any) -> Any:
    """An engine in this process."""
    from vllm import LLM

    return LLM(**settings(path, speculative, verify, **named))


def write(llm: Any, texts: int, prompts: Sequence[list[int]] = PROMPTS, **sampling: Any) -> list[tuple[list[int], Any]]:
    """Prompts and the tokens that follow, `texts` of them, with the same settings."""
    from vllm import SamplingParams

    asked = {"max_tokens": 40, "detokenize": False, "ignore_eos": True, **sampling}
    chosen = [prompts[i % len(prompts)] for i in range(texts)]
    params = [SamplingParams(**asked) for _ in chosen]
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in chosen], params, use_tqdm=False)
    return [(prompt, list(output.outputs[0].token_ids)) for prompt, output in zip(chosen, outputs, strict=True)]


def audited(
    path: Path, written: Sequence[tuple[list[int], list[int]]], draft: Path | None = None, **sampling: Any
) -> Any:
    """The audit's report on texts that were written with these settings."""
    from transformers import LlamaForCausalLM

    from draftproof.audit import Transcript, audit
    from draftproof.models.hf import HFModel
    from draftproof.sampling import Sampling

    def model(folder: Path) -> HFModel:
        return HFModel(LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32))

    texts = [Transcript(tuple(prompt), tuple(output), Sampling(**sampling)) for prompt, output in written]
    return audit(texts, model(path), draft=None if draft is None else model(draft))
