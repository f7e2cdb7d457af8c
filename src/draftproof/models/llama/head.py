"""EAGLE-style head (Li et al. 2401.15077 and 2503.01840): decoder layers over the target's hidden states.

Entry t reads the target's hidden states at token t (those of a few layers, fused into one) and the embedding of token
t + 1, and predicts token t + 2. For draft tokens, which the target has not read yet, the head's own output stands in
for the target's state. It drafts frequent tokens only: its output matrix is the rows of the target's that belong to
them. Only its last layer runs for every draft token: the layers before it read what the target has read, once a step.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F  # noqa: N812

from draftproof.errors import DraftproofError
from draftproof.models.files.int8_file import restore, shrink
from draftproof.models.llama.backends import native_ops
from draftproof.models.llama.block import Block, Blocks, LayerShape
from draftproof.models.llama.call import LayerCall
from draftproof.models.llama.rotary import Rotary, frequencies

KIND = "draftproof-head"


class HeadConfig(NamedTuple):
    """Sizes of a head."""

    shape: LayerShape
    layers: int
    taps: tuple[int, ...]  # which of transformers' `hidden_states` it reads; the last of those is after the final norm
    theta: float  # of rotary positions
    draft_tokens: int  # D, the tokens it can draft
    origin: tuple[float, ...] = ()  # `fingerprint` of the target's output matrix


class HeadNetwork(nn.Module):
    """The layers of a head; embeddings and output rows are the target's and are passed in."""

    tokens: torch.Tensor  # [D] ids of the tokens it can draft, ascending

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        width, eps = config.shape.width, config.shape.eps
        self.tap_scale = nn.Parameter(torch.ones(len(config.taps), width))
        self.fusion = nn.Linear(len(config.taps) * width, width, bias=False)
        self.norm_state = nn.RMSNorm(width, eps)
        self.norm_embedding = nn.RMSNorm(width, eps)
        self.join = nn.Linear(2 * width, width, bias=False)
        self.blocks = Blocks(Block(config.shape) for _ in range(config.layers))
        self.norm_out = nn.RMSNorm(width, eps)
        self.register_buffer("tokens", torch.zeros(config.draft_tokens, dtype=torch.int64))
        self.rotary = Rotary(frequencies(config.shape.size, config.theta))

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """The target's hidden states [B, T, taps * width], tap after tap, as states of the head [B, T, width]."""
        taps, width = self.tap_scale.shape
        states = features.reshape(*features.shape[:-1], taps, width)
        each = native_ops.unit_norm(states, self.config.shape.eps, self.fusion)
        return self.fusion((each * self.tap_scale).flatten(-2))  # type: ignore[no-any-return]

    def inputs(self, states: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """Norms of states of tokens t and of embeddings of tokens t + 1, side by side: [B, T, 2 * width]."""
        return torch.cat(native_ops.norms((self.norm_state, states), (self.norm_embedding, embeddings)), dim=-1)

    def forward(self, inputs: torch.Tensor, call: LayerCall, known: bool) -> torch.Tensor:
        """States of tokens t + 1 [B, T, width] from `inputs`.

        known     the states were the target's, so that all layers run: the others' entries of draft tokens are not used
        """
        first = 0 if known else len(self.blocks) - 1
        return self.blocks(self.join(inputs), call, first)[0]  # type: ignore[no-any-return]

    def logits(self, states: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """[..., width] and the target's output rows of `tokens` [D, width] -> [..., D]."""
        return F.linear(self.norm_out(states), output)


def fingerprint(output: torch.Tensor) -> tuple[float, ...]:
    """Norms of 16 rows of an output matrix [V, width]: they tell one target from another, in any precision."""
    rows = torch.linspace(0, len(output) - 1, 16).long().to(output.device)
    return tuple(round(float(norm), 5) for norm in output.detach()[rows].float().norm(dim=1))


def save(network: HeadNetwork, folder: Path) -> None:
    """config.json and model.safetensors: matrices as 8-bit integers with one scale per output channel."""
    folder.mkdir(parents=True, exist_ok=True)
    config = network.config
    described = {"kind": KIND, **config._asdict(), "shape": config.shape._asdict()}
    (folder / "config.json").write_text(json.dumps(described, indent=1) + "\n")
    kept = {name: weight for name, weight in network.named_parameters() if name != "tap_scale"}
    others = {"tokens": network.tokens.to(torch.int32).cpu(), "tap_scale": network.tap_scale.detach().float().cpu()}
    save_file({**shrink(kept), **others}, folder / "model.safetensors")


def describe(folder: Path) -> HeadConfig:
    """Sizes of the head in a folder, without its weights."""
    try:
        described = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise DraftproofError(_unreadable(folder, error)) from error
    if described.pop("kind", None) != KIND:
        raise DraftproofError(f"{folder} holds no head but another kind of model: load it as a model")
    described["shape"] = LayerShape(**described["shape"])
    described.update({name: tuple(described.get(name, ())) for name in ("taps", "origin")})
    return HeadConfig(**described)


def load(folder: Path) -> HeadNetwork:
    """The head in a folder, in float32 and ready to draft."""
    described = describe(folder)
    with torch.device("meta"):  # its weights come from the file
        network = HeadNetwork(described)
    try:
        stored = load_file(folder / "model.safetensors")
    except (OSError, ValueError) as error:
        raise DraftproofError(_unreadable(folder, error)) from error
    network.load_state_dict({**restore(stored), "tokens": stored["tokens"].long()}, assign=True)
    return network.eval().requires_grad_(False)


def _unreadable(folder: Path, error: Exception) -> str:
    return f"no head can be read in {folder} ({error}): train one with `draftproof distill`"
