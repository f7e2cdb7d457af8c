"""A trained head that drafts in C: a whole chain in one call, or token by token."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from draftproof import native
from draftproof.models.llama.backends.linear import laid_out
from draftproof.native import NativeHead, follow, guess

__all__ = ["NativeHead", "follow", "guess", "open_head"]


def open_head(network: Any, embeddings: torch.Tensor, output: nn.Module, norm: nn.Module) -> NativeHead | None:
    """A HeadNetwork with the target's embeddings [V, width] and output rows, if all of it is laid out for C."""
    join, rows = laid_out(network.join), laid_out(output)
    if network.blocks.stack is None or join is None or rows is None or embeddings.dtype != torch.float32:
        return None
    return native.lay_out_head(
        network.blocks.stack,
        network.config.shape.heads,
        (join, rows),
        (network.norm_state, network.norm_embedding, norm if isinstance(norm, nn.RMSNorm) else None),
        embeddings,
        network.tokens,
    )
