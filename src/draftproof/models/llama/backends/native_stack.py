"""All layers of a call in one C function, on a CPU: it reads the weights as fast as memory delivers them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from draftproof import native
from draftproof.models.llama.backends import native_ops
from draftproof.models.llama.backends.linear import laid_out
from draftproof.models.llama.call import LayerCall
from draftproof.native import Stack


def lay_out(blocks: Any) -> Stack | None:
    """Blocks whose linear layers are all laid out for C, with the norms before them; else None."""
    layers = []
    for block in blocks:
        linears = [layer for linear in block.linears if (layer := laid_out(linear)) is not None]
        norms = (block.norm_in, None, block.norm_mlp, None)
        if len(linears) < len(norms):
            return None
        # a norm that is no RMSNorm any more is part of the linear layer
        apart = [norm if isinstance(norm, nn.RMSNorm) else None for norm in norms]
        layers.append(list(zip(linears, apart, strict=True)))
    return native.stack(layers)


def fits(blocks: Any, x: torch.Tensor, call: LayerCall, first: int, keep: bool) -> bool:
    return blocks.stack is not None and native.fits(x, native.MANY) and native_ops.takes(call, x, blocks.shape)


def run(blocks: Any, x: torch.Tensor, call: LayerCall, first: int, keep: bool) -> tuple[torch.Tensor, Any]:
    call, layers = call.written_out(x.dtype), call.cache[first:]
    native_ops.allocate(layers, blocks.shape, x)
    entries = [(layer.keys, layer.values) for layer in layers]
    masks: list[Any] = [call.masks[kind] for kind in blocks.kinds[first:]]
    attention = native_ops.describe(call, call.angles(x.dtype), x, blocks.shape, first)
    return native.run_stack(blocks.stack, x, attention, entries, masks, keep)
