"""A call of a whole network in one C function: one text on a CPU, whose tokens follow each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from draftproof import native
from draftproof.models.llama.backends.linear import laid_out
from draftproof.models.llama.backends.native_stack import MOST
from draftproof.models.llama.backends.ordered_norm import OrderedNorm
from draftproof.models.llama.masks import Causal, Mask
from draftproof.models.llama.placement import Range
from draftproof.native import NativeNetwork

__all__ = ["NativeNetwork", "fits", "open_network", "run"]


def open_network(network: Any) -> NativeNetwork | None:
    """A FusedLlama in integers, all of whose parts are laid out for C; else None."""
    blocks, output, embed, norm = network.blocks, laid_out(network.head), network.embed, network.norm
    if blocks.stack is None or output is None or type(embed) is not nn.Embedding or embed.weight.dtype != torch.float32:
        return None
    if not isinstance(norm, OrderedNorm):  # torch's has other bits
        return None
    heads = blocks.shape.heads, blocks.shape.shared, blocks.shape.size
    masks = [native.causal(network.windows[kind]) for kind in blocks.kinds]
    return native.lay_out_network(blocks.stack, heads, embed.weight, norm, output, masks)


def fits(network: Any, ids: torch.Tensor, masks: Mapping[str, Mask], view: Any) -> bool:
    """Whether it can do this call of a FusedLlama."""
    if view is None or type(view.placement) is not Range or torch.is_grad_enabled() or network.whole is None:
        return False
    if len(ids) > 1 or ids.shape[1] > max(1, MOST // network.whole.widest):
        return False
    return all(type(mask) is Causal and mask.window == network.windows[kind] for kind, mask in masks.items())


def run(
    network: Any, ids: torch.Tensor, masks: Any, positions: torch.Tensor, view: Any, keep: int, wanted: Sequence[int]
) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """As `FusedLlama.forward` asks: logits, and hidden states by number."""
    cache, placement = view.cache, view.placement
    if cache.addresses is None:
        cache.allocate(network.blocks.shape.shared, network.blocks.shape.size, network.embed.weight)
        cache.addresses = native.addresses([(layer.keys, layer.values) for layer in cache.layers])
    angles = network.rotary.table(int(positions.max()) + 1)
    slots, buffers = (placement.start, placement.begin), (cache.addresses, cache.capacity + 1)
    ids, positions = ids.contiguous(), positions.contiguous()
    return native.forward(network.whole, ids, positions, angles, slots, buffers, keep or ids.shape[1], wanted)
