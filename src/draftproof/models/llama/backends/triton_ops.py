"""A layer in eight launches, for calls of few tokens on a GPU and for packed prompts.

A call of few tokens takes as long as its weights take to be read, plus some microseconds for every launch. torch needs
about thirty launches for a layer, mostly for attention; here it is eight, four of which are cuBLAS's products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from draftproof import kernels
from draftproof.kernels.llama import limits
from draftproof.models.llama.call import LayerCall
from draftproof.models.llama.masks import Branching, Causal, Mask, Packed
from draftproof.models.llama.rotary import Rotation


def supports(blocks: Any) -> bool:
    """Whether the kernels can run these layers; without tables they are not used."""
    if not len(blocks):
        return False
    shape, weight = blocks.shape, blocks[0].norm_in.weight
    return (
        weight.is_cuda
        and kernels.available(weight.device)
        and weight.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and shape.size in limits.HEAD_SIZES
        and all(type(linear) is nn.Linear for block in blocks for linear in block.linears)
    )


def takes(blocks: Any, tokens: int, dtype: torch.dtype) -> bool:
    """Whether so many new tokens of a row are few enough, for layers that `supports` is true of."""
    shape = blocks.shape
    parts = limits.query_parts(tokens, shape.heads // shape.shared, shape.size * dtype.itemsize)
    return tokens <= limits.DECODE_TOKENS and parts <= limits.QUERY_PARTS


def fits(blocks: Any, x: torch.Tensor, call: LayerCall, first: int, keep: Sequence[int]) -> bool:
    if call.tables is None:
        return False
    masks = call.masks.values()
    if all(isinstance(mask, Packed) for mask in masks):
        return True
    return all(isinstance(mask, Causal | Branching) for mask in masks) and takes(blocks, x.shape[1], x.dtype)


def run(blocks: Any, x: torch.Tensor, call: LayerCall, first: int, keep: Sequence[int]) -> tuple[torch.Tensor, Any]:
    from draftproof.kernels.llama import ops  # imports Triton

    rotation, inputs = angles(call, x.dtype), []
    for number, (block, mask, _) in enumerate(blocks.layers(call, first), first):
        if keep:
            inputs.append(x)
        qkv = block.qkv(ops.rms_norm(x, block.norm_in))
        x, inner = ops.add_rms_norm(x, block.out(attend(qkv, rotation, mask, call, number)), block.norm_mlp)
        gated = ops.silu_gate(block.gate_up(inner))
        x.flatten(0, 1).addmm_(gated.flatten(0, 1), block.down.weight.T)  # in place: x is ours since add_rms_norm
    return x, inputs


def attend(qkv: torch.Tensor, rotation: Rotation, mask: Mask, call: LayerCall, number: int) -> torch.Tensor:
    """Attention of layer `number`: queries, keys and values side by side [B, T, ...] -> [B, T, heads * size]."""
    from draftproof.kernels.llama import ops

    placement: Any = call.placement
    layer, tables = call.cache[number], call.tables
    entries, heads = (layer.keys, layer.values), _heads(qkv, layer)
    assert tables is not None
    if isinstance(mask, Packed):
        packed = ops.PackedTokens(placement.slots, placement.rows, mask.window)
        return ops.prefill_attention(qkv, rotation, packed, entries, heads)
    if isinstance(mask, Branching):
        new = ops.Decoded(placement.number, mask.depth, placement.root, mask.ancestors, mask.window)
    else:
        assert isinstance(mask, Causal)
        slots = placement.slots.contiguous()
        new = ops.Decoded(slots, slots, window=mask.window)
    return ops.decode_attention(qkv, rotation, new, entries, tables.arrivals[number], heads)


def angles(call: LayerCall, dtype: torch.dtype) -> Rotation:
    """Cosine and sine in one launch, unless they are given."""
    if isinstance(call.rotation, Rotation):
        return call.rotation
    from draftproof.kernels.llama import ops

    positions, frequencies, scale, _ = call.rotation
    return Rotation(*ops.rotary_angles(positions, frequencies, scale, dtype))


def head_inputs(
    states: torch.Tensor,
    tokens: torch.Tensor,
    embeddings: torch.Tensor,
    norms: tuple[nn.RMSNorm, nn.RMSNorm],
    nodes: Any = None,
) -> torch.Tensor:
    """What HeadNetwork.inputs returns, [B, T, 2 * width], in one launch.

    nodes     of a tree (static.tree_calls.NodeCall): tokens are all of its, states those of the call before
    """
    from draftproof.kernels.llama import ops

    taken = None if nodes is None else ops.Taken(nodes.parent, nodes.number)
    return ops.head_inputs(states, tokens, embeddings, norms, taken)


def _heads(qkv: torch.Tensor, layer: Any) -> Any:
    from draftproof.kernels.llama.ops import Heads

    _, kv_heads, _, size = layer.keys.shape
    return Heads(qkv.shape[-1] // size - 2 * kv_heads, kv_heads, size)
