"""Teaching a head: it runs over its own output several times, so it learns from what it will see when drafting.

In step k the entry of token t knows the target's states up to token t - k and the head's own from there on
(training-time test, Li et al. 2503.01840). All steps' keys stay in one store, and a mask tells which of them belong to
an entry's past.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from draftproof.distill.student import Student
from draftproof.distill.teacher import Seen
from draftproof.models import headnet
from draftproof.models.headnet import HeadConfig, HeadNetwork
from draftproof.models.hf import HFModel
from draftproof.models.llama import Rotation, Shape


def student(model: HFModel, frequent: torch.Tensor, layers: int, steps: int) -> Student:
    """A new head for the target that guesses among the frequent tokens [D], ascending."""
    target: Any = model.network
    config = target.config.get_text_config()
    width = int(config.hidden_size)
    size = int(getattr(config, "head_dim", None) or width // config.num_attention_heads)
    # every head has its own keys and values: they are cheap in a single layer, and masks are faster without sharing
    shape = Shape(width, width // size, width // size, size, int(getattr(config, "intermediate_size", 4 * width)))
    deep = int(config.num_hidden_layers)
    taps = tuple(sorted({max(deep // 3, 1), max(2 * deep // 3, 1), deep}))
    theta = float((getattr(config, "rope_parameters", None) or {}).get("rope_theta", 10000.0))
    origin = headnet.fingerprint(target.get_output_embeddings().weight)
    network = HeadNetwork(HeadConfig(shape, layers, taps, theta, len(frequent), origin)).to(target.device)
    network.tokens.copy_(frequent)
    final = getattr(target.base_model, "norm", None)
    with torch.no_grad():
        if final is not None and final.weight.shape == network.norm_out.weight.shape:
            network.norm_out.weight.copy_(final.weight)  # the scale that the output matrix expects
        for name, weight in network.named_parameters():
            if name.endswith(("out.weight", "down.weight")) and weight.ndim == 2:  # a new layer changes little yet
                weight.mul_(0.1)
    return _taught(network, target, steps)


def resume(model: HFModel, folder: Path, steps: int) -> Student:
    """The head in a folder, to be taught further."""
    network = headnet.load(folder).train().requires_grad_(True)
    target: Any = model.network
    return _taught(network.to(target.device), target, steps)


def _taught(network: HeadNetwork, target: Any, steps: int) -> Student:
    output = target.get_output_embeddings().weight.detach()[network.tokens]
    embed = target.get_input_embeddings()

    def guesses(seen: Seen, count: int) -> Iterator[torch.Tensor]:
        return unroll(network, seen, embed, output, count)

    def save(folder: Path) -> None:
        headnet.save(network, folder)

    return Student(network, network.config.taps, network.tokens, steps, guesses, save)


def unroll(network: HeadNetwork, seen: Seen, embed: Any, output: torch.Tensor, count: int) -> Iterator[torch.Tensor]:
    """Logits [B, L - 1, D] of the first, second, ... guess after tokens 1, 2, ..."""
    with torch.no_grad():
        embeddings = embed(seen.tokens[:, 1:])
    length = embeddings.shape[1]
    positions = torch.arange(length, device=seen.tokens.device)
    rotation = Rotation.of(positions[None], network.frequencies.to(positions.device))
    stores = [_Steps() for _ in network.blocks]
    states = network.fuse(seen.features[:, :-1])
    for step in range(count):
        made = network(states, embeddings, rotation, _visible(positions, step), stores)
        yield network.logits(made, output)
        states = torch.cat([states[:, :1], made[:, :-1]], dim=1)  # the first entry has no past, and no meaning now


class _Steps:
    """Keys and values of all steps, side by side."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def update(self, keys: torch.Tensor, values: torch.Tensor, /) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys.append(keys)
        self.values.append(values)
        return torch.cat(self.keys, dim=2), torch.cat(self.values, dim=2)


def _visible(positions: torch.Tensor, step: int) -> torch.Tensor:
    """[1, 1, T, (step + 1) T]: the target's entries up to t - step, then one own entry of each later step."""
    t, s = positions[:, None], positions[None]
    own = [s == t - step + earlier for earlier in range(1, step + 1)]
    return torch.cat([s <= t - step, *own], dim=1)[None, None]
