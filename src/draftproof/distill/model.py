"""Train a small draft model: a Llama with the target's tokenizer, in transformers' format."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from draftproof.distill.student import Student
from draftproof.distill.teacher import TeacherOutput
from draftproof.models import read
from draftproof.models.hf import HFModel


def student(model: HFModel, width: int, layers: int, begin: str = "") -> Student:
    """A small model for the target: a new one, or the one named `begin`."""
    target: Any = model.network
    network = read(begin, torch.float32)[0] if begin else _new(model, width, layers)
    network.to(target.device)

    def guesses(teacher: TeacherOutput, count: int) -> Iterator[torch.Tensor]:
        yield network(teacher.tokens, use_cache=False).logits[:, 1:]

    def save(folder: Path) -> None:
        copy.deepcopy(network).to("cpu", torch.float16).save_pretrained(folder)
        model.tokenizer.save_pretrained(folder)

    return Student(network, (), None, 1, guesses, save)


def _new(model: HFModel, width: int, layers: int) -> Any:
    """A new model; its embeddings start as the target's, projected to its width."""
    from transformers import LlamaConfig, LlamaForCausalLM

    target: Any = model.network
    size = 32 if width % 32 == 0 else 8
    config = LlamaConfig(
        vocab_size=model.vocabulary,
        hidden_size=width,
        intermediate_size=8 * width // 3 // 8 * 8,
        num_hidden_layers=layers,
        num_attention_heads=width // size,
        head_dim=size,
        max_position_embeddings=model.context or 2048,
        tie_word_embeddings=True,
        bos_token_id=getattr(target.config, "bos_token_id", None),
        eos_token_id=list(model.end_tokens) or None,
        pad_token_id=getattr(target.config, "pad_token_id", None),
    )
    network = LlamaForCausalLM(config)
    with torch.no_grad():
        table = target.get_input_embeddings().weight.float().cpu()
        if table.shape[1] > width:
            axes = torch.linalg.eigh(table.T @ table).eigenvectors[:, -width:]
            table = table @ axes
            network.model.embed_tokens.weight.copy_(table / table.std() * config.initializer_range)
    return network
