"""Train a head on its own output over several steps, as it will be used for drafting.

In step k the entry of token t reads the target's states up to token t - k and the head's own from there on
(training-time test, Li et al. 2503.01840). The layers are those that draft (models/llama/block.py); only attention is
training's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

from draftproof.distill.attention import TrainingEntries
from draftproof.distill.student import Student
from draftproof.distill.teacher import TeacherOutput
from draftproof.errors import DraftproofError
from draftproof.models.hf import HFModel
from draftproof.models.llama import head as headnet
from draftproof.models.llama.block import Block, LayerShape
from draftproof.models.llama.head import HeadConfig, HeadNetwork


def student(model: HFModel, frequent: torch.Tensor, layers: int, steps: int) -> Student:
    """A new head for the target that drafts the frequent tokens [D], ascending."""
    target: Any = model.network
    config = target.config.get_text_config()
    width = int(config.hidden_size)
    size = int(getattr(config, "head_dim", None) or width // config.num_attention_heads)
    # every head has its own keys and values: they are cheap in a single layer
    shape = LayerShape(width, width // size, width // size, size, int(getattr(config, "intermediate_size", 4 * width)))
    deep = int(config.num_hidden_layers)
    taps = tuple(sorted({max(deep // 3, 1), max(2 * deep // 3, 1), deep}))
    theta = float((getattr(config, "rope_parameters", None) or {}).get("rope_theta", 10000.0))
    origin = headnet.fingerprint(target.get_output_embeddings().weight)
    network = HeadNetwork(HeadConfig(shape, layers, taps, theta, len(frequent), origin)).to(target.device)
    network.tokens.copy_(frequent)
    final: Any = dict(target.base_model.named_children()).get("norm")
    with torch.no_grad():
        if final is not None and final.weight.shape == network.norm_out.weight.shape:
            network.norm_out.weight.copy_(final.weight)  # the scale that the output matrix expects
        for name, weight in network.named_parameters():
            if name.endswith(("out.weight", "down.weight")) and weight.ndim == 2:  # a new layer changes little yet
                weight.mul_(0.1)
    return _student(network, target, steps)


def resume(
    model: HFModel, folder: Path, steps: int, layers: int | None = None, frequent: torch.Tensor | None = None
) -> Student:
    """Load the head in a folder for further training, optionally with more layers and other draft tokens."""
    network = headnet.load(folder)
    if frequent is not None:  # the tokens that it drafts are no part of the weights
        network.config = network.config._replace(draft_tokens=len(frequent))
        network.tokens = frequent
    more = (layers or network.config.layers) - network.config.layers
    if more < 0:
        raise DraftproofError(
            f"the head in {folder} has more layers than {layers}: use --layers {network.config.layers}"
        )
    network = _grow(network, more) if more else network
    target: Any = model.network
    return _student(network.train().requires_grad_(True).to(target.device), target, steps)


def _grow(network: HeadNetwork, more: int) -> HeadNetwork:
    """Put new layers before the others; at first they change nothing."""
    config = network.config
    large = HeadNetwork(config._replace(layers=config.layers + more))
    weights = {name: value for name, value in network.state_dict().items() if not name.startswith("blocks.")}
    large.load_state_dict(weights, strict=False)
    for n, block in enumerate(network.blocks):
        large.blocks[more + n].load_state_dict(block.state_dict())
    for block in large.blocks[:more]:
        new: Any = block
        for linear in (new.out, new.down):
            torch.nn.init.zeros_(linear.weight)
    return large


def _student(network: HeadNetwork, target: Any, steps: int) -> Student:
    output = target.get_output_embeddings().weight.detach()[network.tokens]
    embed = target.get_input_embeddings()

    def guesses(teacher: TeacherOutput, count: int) -> Iterator[torch.Tensor]:
        return unroll(network, teacher, embed, output, count)

    def save(folder: Path) -> None:
        headnet.save(network, folder)

    return Student(network, network.config.taps, network.tokens, steps, guesses, save)


def unroll(
    network: HeadNetwork, teacher: TeacherOutput, embed: Any, output: torch.Tensor, count: int
) -> Iterator[torch.Tensor]:
    """Logits [B, L - 1, D] of the first, second, ... draft token after tokens 1, 2, ..."""
    with torch.no_grad():
        embeddings = embed(teacher.tokens[:, 1:])
    positions = torch.arange(embeddings.shape[1], device=teacher.tokens.device)
    rotation = network.rotary.at(positions[None]).rotation(embeddings.dtype)
    # in training every call has the same shape, so what stands between products is worth fusing
    join, project, finish, score = compiled() if embeddings.is_cuda and torch.is_grad_enabled() else PARTS
    entries = [TrainingEntries() for _ in network.blocks]
    states = network.fuse(teacher.features[:, :-1])
    for step in range(count):
        x = join(network, states, embeddings)
        for n in range(0 if step == 0 else len(entries) - 1, len(entries)):
            block = network.blocks[n]
            attended = entries[n].attend(*project(block, x, rotation))
            x = finish(block, x, attended.transpose(1, 2).flatten(2))
        yield score(network, x, output)
        states = torch.cat([states[:, :1], x[:, :-1]], dim=1)  # the first entry has no past, and no meaning now


def _join(network: HeadNetwork, states: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
    return network.join(network.inputs(states, embeddings))  # type: ignore[no-any-return]


# the head in four parts, between which training has attention and a loop of its own
PARTS: tuple[Any, ...] = (_join, Block.project, Block.finish, HeadNetwork.logits)


@cache
def compiled() -> tuple[Any, ...]:
    """The same parts, compiled at their first call; the compiler itself takes seconds to import."""
    return tuple(torch.compile(part, dynamic=False) for part in PARTS)
