"""Train a head on its own output over several steps, as it will be used for drafting.

In step k the entry of token t depends on the target's hidden states up to token t - k and on the head's own from there
on (training-time test, Li et al. 2503.01840).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

from draftproof.distill.attention import UnrolledCache
from draftproof.distill.student import Student
from draftproof.distill.teacher import Seen
from draftproof.errors import DraftproofError
from draftproof.models.hf import HFModel
from draftproof.models.llama import head as headnet
from draftproof.models.llama.block import Rotation, Shape
from draftproof.models.llama.head import HeadConfig, HeadNetwork


def student(model: HFModel, frequent: torch.Tensor, layers: int, steps: int) -> Student:
    """A new head for the target that guesses among the frequent tokens [D], ascending."""
    target: Any = model.network
    config = target.config.get_text_config()
    width = int(config.hidden_size)
    size = int(getattr(config, "head_dim", None) or width // config.num_attention_heads)
    # no grouped keys and values: in a single layer they are cheap
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
            if name.endswith(("out.weight", "down.weight")) and weight.ndim == 2:  # a new layer changes little
                weight.mul_(0.1)
    return _taught(network, target, steps)


def resume(
    model: HFModel, folder: Path, steps: int, layers: int | None = None, frequent: torch.Tensor | None = None
) -> Student:
    """Load the head in a folder for further training, optionally with more layers and other draft tokens."""
    network = headnet.load(folder)
    if frequent is not None:  # the draft tokens are not part of the weights
        network.config = network.config._replace(draft_tokens=len(frequent))
        network.tokens = frequent
    more = (layers or network.config.layers) - network.config.layers
    if more < 0:
        raise DraftproofError(
            f"the head in {folder} has more layers than {layers}: use --layers {network.config.layers}"
        )
    network = _grown(network, more) if more else network
    target: Any = model.network
    return _taught(network.train().requires_grad_(True).to(target.device), target, steps)


def _grown(network: HeadNetwork, more: int) -> HeadNetwork:
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


def _taught(network: HeadNetwork, target: Any, steps: int) -> Student:
    output = target.get_output_embeddings().weight.detach()[network.tokens]
    embed = target.get_input_embeddings()
    network.frequencies = network.frequencies.to(target.device)

    def guesses(seen: Seen, count: int) -> Iterator[torch.Tensor]:
        return unroll(network, seen, embed, output, count)

    def save(folder: Path) -> None:
        headnet.save(network, folder)

    return Student(network, network.config.taps, network.tokens, steps, guesses, save)


def unroll(network: HeadNetwork, seen: Seen, embed: Any, output: torch.Tensor, count: int) -> Iterator[torch.Tensor]:
    """Logits [B, L - 1, D] of the first, second, ... guess after tokens 1, 2, ..."""
    with torch.no_grad():
        embeddings = embed(seen.tokens[:, 1:])
    positions = torch.arange(embeddings.shape[1], device=seen.tokens.device)
    rotation = Rotation.of(positions[None], network.frequencies).to(embeddings.dtype)
    eps = network.config.shape.eps
    # in training every call has the same shape, so fusing the work between products pays
    join, before, after, say = fused() if embeddings.is_cuda and torch.is_grad_enabled() else PARTS
    pasts = [UnrolledCache() for _ in network.blocks]
    states = network.fuse(seen.features[:, :-1])
    for step in range(count):
        norms = network.norm_state.weight, network.norm_embedding.weight
        x = join(states, embeddings, *norms, network.join.weight, eps)
        for n in range(0 if step == 0 else len(pasts) - 1, len(pasts)):
            block: Any = network.blocks[n]
            shape = block.shape
            sizes = shape.heads, shape.shared, shape.size
            asked = before(x, block.norm_in.weight, block.qkv.weight, rotation.cos, rotation.sin, eps, sizes)
            weights = block.out.weight, block.norm_mlp.weight, block.gate_up.weight, block.down.weight
            x = after(x, pasts[n].attend(*asked), *weights, eps)
        yield say(x, network.norm_out.weight, output, eps)
        states = torch.cat([states[:, :1], x[:, :-1]], dim=1)  # the first entry has no past and is not used


# The head in four parts, functions of tensors alone


def _join(
    states: torch.Tensor,
    embeddings: torch.Tensor,
    norm_state: torch.Tensor,
    norm_embedding: torch.Tensor,
    join: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    read = [_norm(states, norm_state, eps), _norm(embeddings, norm_embedding, eps)]
    return F.linear(torch.cat(read, dim=-1), join)


def _before(
    x: torch.Tensor,
    norm: torch.Tensor,
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float,
    sizes: tuple[int, int, int],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values [B, heads, T, size]."""
    heads, shared, size = sizes
    joint = F.linear(_norm(x, norm, eps), qkv)
    joint = joint.view(*joint.shape[:2], -1, size).transpose(1, 2)
    turned, value = Rotation(cos, sin).turn(joint[:, :-shared]), joint[:, -shared:]
    copies = heads // shared
    key, value = (part.repeat_interleave(copies, dim=1) for part in (turned[:, heads:], value))
    return turned[:, :heads], key, value


def _after(
    x: torch.Tensor,
    seen: torch.Tensor,
    out: torch.Tensor,
    norm: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    x = x + F.linear(seen.transpose(1, 2).flatten(2), out)
    gate, up = F.linear(_norm(x, norm, eps), gate_up).chunk(2, dim=-1)
    return x + F.linear(F.silu(gate) * up, down)


def _say(x: torch.Tensor, norm: torch.Tensor, output: torch.Tensor, eps: float) -> torch.Tensor:
    return F.linear(_norm(x, norm, eps), output)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


PARTS: tuple[Any, ...] = (_join, _before, _after, _say)


@cache
def fused() -> tuple[Any, ...]:
    """The same parts, compiled at their first call; the compiler itself takes seconds to import."""
    return tuple(torch.compile(part, dynamic=False) for part in PARTS)
