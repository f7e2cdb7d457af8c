"""The trained head (EAGLE, Li et al. 2401.15077 and 2503.01840): a layer that continues the target's own thoughts.

Entry t reads what the target knew at token t (its hidden states of a few layers, fused into one) and the embedding of
token t + 1, and predicts token t + 2. For guessed tokens, which the target has not read yet, the head's own output
stands in for the target's state. It guesses among frequent tokens only: the rows of the target's output matrix that
belong to them are its own output matrix. Of its layers only the last sees every entry: those before it read what the
target has read, once a step and not once a guess.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F  # noqa: N812

from draftproof import native
from draftproof.errors import DraftproofError
from draftproof.models.files.int8_file import restore, shrink
from draftproof.models.llama.block import Block, Blocks, Mask, Rotation, Shape, Store, frequencies, normed

KIND = "draftproof-head"


class HeadConfig(NamedTuple):
    """Sizes of a head."""

    shape: Shape
    layers: int
    taps: tuple[int, ...]  # which of transformers' `hidden_states` it reads; the last of those is after the final norm
    theta: float  # of rotary positions
    draft_tokens: int  # D
    origin: tuple[float, ...] = ()  # `fingerprint` of the target's output matrix


class HeadNetwork(nn.Module):
    """Fuse, read, guess; embeddings and output rows are the target's and are passed in."""

    tokens: torch.Tensor  # [D] ids of the tokens it can guess, ascending

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
        # no buffer: a network in bfloat16 still needs its angles in float32
        self.frequencies = frequencies(config.shape.size, config.theta)

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """The target's hidden states [B, T, taps * width], tap after tap, as states of the head [B, T, width]."""
        taps, width = self.tap_scale.shape
        each, eps = features.reshape(*features.shape[:-1], taps, width), self.config.shape.eps
        few = native.fits(each)
        each = native.norm(each, each.new_ones(width), eps) if few else F.rms_norm(each, (width,), eps=eps)
        return self.fusion((each * self.tap_scale).flatten(-2))  # type: ignore[no-any-return]

    def forward(
        self,
        states: torch.Tensor,
        embeddings: torch.Tensor,
        rotation: Rotation,
        mask: Mask,
        stores: Sequence[Store | None],
        known: bool,
    ) -> torch.Tensor:
        """States of tokens t and embeddings of tokens t + 1, both [B, T, width] -> states of tokens t + 1.

        Positions are those of tokens t; mask and stores (one a layer) as for a Block; known: states are the target's.
        """
        few = native.fits(states) and native.fits(embeddings)
        read = [normed(self.norm_state, states, few), normed(self.norm_embedding, embeddings, few)]
        return self.go_on(torch.cat(read, dim=-1), rotation, mask, stores, known)

    def go_on(
        self, read: torch.Tensor, rotation: Rotation, mask: Mask, stores: Sequence[Store | None], known: bool
    ) -> torch.Tensor:
        """The same from the norms of both side by side, [B, T, 2 * width]."""
        x = self.join(read)
        first = 0 if known else len(self.blocks) - 1
        return self.blocks(x, rotation, [mask] * len(self.blocks), stores, first)[0]  # type: ignore[no-any-return]

    def logits(self, states: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """[..., width] and the target's output rows of `tokens` [D, width] -> [..., D]."""
        return F.linear(self.norm_out(states), output)


def fingerprint(output: torch.Tensor) -> tuple[float, ...]:
    """Norms of 16 rows of an output matrix [V, width]: enough to tell one target from another, in any precision."""
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
    described["shape"] = Shape(**described["shape"])
    described.update({name: tuple(described.get(name, ())) for name in ("taps", "origin")})
    return HeadConfig(**described)


def load(folder: Path) -> HeadNetwork:
    """The head in a folder, in float32 and ready to guess."""
    network = HeadNetwork(describe(folder))
    try:
        stored = load_file(folder / "model.safetensors")
    except (OSError, ValueError) as error:
        raise DraftproofError(_unreadable(folder, error)) from error
    network.load_state_dict({**restore(stored), "tokens": stored["tokens"].long()})
    return network.eval().requires_grad_(False)


def _unreadable(folder: Path, error: Exception) -> str:
    return f"no head can be read in {folder} ({error}): train one with `draftproof distill`"
