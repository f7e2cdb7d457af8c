"""A trained head that drafts in C: a whole chain in one call, or token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from draftproof import native
from draftproof.models.llama.backends.linear import laid_out
from draftproof.models.llama.backends.native_stack import MOST
from draftproof.native import NativeHead, follow, guess

__all__ = ["NativeHead", "catch_up", "follow", "guess", "open_head"]


def open_head(network: Any, embeddings: torch.Tensor, output: nn.Module, norm: nn.Module) -> NativeHead | None:
    """A HeadNetwork with the target's embeddings [V, width] and output rows, if all of it is laid out for C."""
    fusion, join, rows = laid_out(network.fusion), laid_out(network.join), laid_out(output)
    if network.blocks.stack is None or embeddings.dtype != torch.float32:
        return None
    if fusion is None or join is None or rows is None:
        return None
    return native.lay_out_head(
        network.blocks.stack,
        network.config.shape.heads,
        (fusion, join, rows),
        (network.norm_state, network.norm_embedding, norm if isinstance(norm, nn.RMSNorm) else None),
        network.tap_scale,
        embeddings,
        network.tokens,
    )


def catch_up(
    head: NativeHead,
    features: torch.Tensor,
    tokens: np.ndarray,
    angles: tuple[torch.Tensor, torch.Tensor],
    entry: int,
    entries: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> torch.Tensor:
    """Compute entries as `native.catch_up` does, many of them part by part; the state [width] after the last one."""
    most = max(1, MOST // head.widest)
    for start in range(0, len(tokens), most):
        part = slice(start, start + most)
        states = native.catch_up(head, features[part], tokens[part], angles, entry + start, entries)
    return states[-1]
