"""All layers of a call in one C function, on a CPU: it reads the weights as fast as memory delivers them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from draftproof import native
from draftproof.models.kv_cache import allocate
from draftproof.models.llama.backends import native_ops
from draftproof.models.llama.backends.linear import laid_out
from draftproof.models.llama.call import LayerCall
from draftproof.models.llama.masks import additive
from draftproof.models.llama.placement import Range, Slots
from draftproof.native import Stack

MOST = 1 << 21  # numbers that the tokens of a long prompt become in one layer: more tokens are read part by part


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


def fits(blocks: Any, x: torch.Tensor, call: LayerCall, first: int, keep: Sequence[int]) -> bool:
    if blocks.stack is None or not native.fits(x, None):
        return False
    return call.placement is None or native_ops.takes(native_ops.laid_open(call), x)


def run(blocks: Any, x: torch.Tensor, call: LayerCall, first: int, keep: Sequence[int]) -> tuple[torch.Tensor, Any]:
    call = _ready(blocks, x, call)
    allocate(call.cache[first:], blocks.shape.shared, blocks.shape.size, x)
    kinds = blocks.kinds[first:]
    entries = [(layer.keys, layer.values) for layer in call.cache[first:]]
    outputs: list[Any] = []
    for some, part in _parts(x, call._replace(rotation=call.angles_on_host()), _most(blocks)):
        masks = {kind: native_ops.as_struct(mask) for kind, mask in part.masks.items()}
        attention = native_ops.describe(part, part.angles_on_host(), some, blocks.shape, first)
        attention.sizes.padded = isinstance(part.placement, Slots) and part.placement.padded
        outputs.append(native.run_stack(blocks.stack, some, attention, entries, [masks[kind] for kind in kinds], keep))
    whole, inputs = outputs[0]
    if len(outputs) > 1:
        whole = torch.cat([output for output, _ in outputs], dim=1)
        inputs = torch.cat([inputs for _, inputs in outputs], dim=2) if keep else None
    return whole, dict(zip(keep, inputs, strict=True)) if keep else {}


def _ready(blocks: Any, x: torch.Tensor, call: LayerCall) -> LayerCall:
    """The call as the C function takes it; where nothing is cached, with buffers for this call alone."""
    if call.placement is not None:
        return native_ops.laid_open(call)
    (batch, tokens, _), shape = x.shape, blocks.shape
    apart = len(blocks) if tokens > _most(blocks) else 1  # layers that are done before the next part comes share one
    buffers = x.new_empty((apart, 2, batch, shape.shared, tokens + 1, shape.size))
    layers = [SimpleNamespace(keys=keys, values=values, is_initialized=True) for keys, values in buffers]
    masks = {
        kind: additive(mask[:, 0], x.dtype) if isinstance(mask, torch.Tensor) and mask.dtype == torch.bool else mask
        for kind, mask in call.masks.items()
    }
    rotation = call.angles_on_host()
    rotation = type(rotation)(*(part.expand(batch, -1, -1, -1) for part in rotation))
    return LayerCall(rotation, masks, Range(1, tokens + 1, begin=1), layers * (len(blocks) // apart))


def _most(blocks: Any) -> int:
    """Tokens of a row that go through all layers together."""
    return max(1, MOST // int(blocks.stack.width))


def _parts(x: torch.Tensor, call: LayerCall, most: int) -> Iterator[tuple[torch.Tensor, LayerCall]]:
    """The call a few tokens at a time: no token sees a later one."""
    tokens = x.shape[1]
    if tokens <= most:
        yield x, call
        return
    placement: Any = call.placement
    for start in range(0, tokens, most):
        cut = slice(start, min(start + most, tokens))
        if isinstance(placement, Range):
            there: Any = placement._replace(start=placement.start + start)
        else:
            there = placement._replace(slots=placement.slots[:, cut])
        rotation: Any = call.rotation
        masks = {kind: mask[:, :, cut] if isinstance(mask, torch.Tensor) else mask for kind, mask in call.masks.items()}
        turned = type(rotation)(*(part[:, :, cut] for part in rotation))
        yield x[:, cut].contiguous(), call._replace(rotation=turned, masks=masks, placement=there)
