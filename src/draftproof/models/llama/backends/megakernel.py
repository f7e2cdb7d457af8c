"""All layers in one launch, for calls of few tokens of a small network, such as a drafter.

Where the inputs of some layers are asked for, as by a head that reads them, there is a launch up to each of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from draftproof.kernels.llama import limits
from draftproof.models.llama.backends import triton_ops
from draftproof.models.llama.call import LayerCall
from draftproof.models.llama.masks import Branching, Causal
from draftproof.models.llama.placement import NodeSlots, Slots

KEPT = 4  # layers whose input a call may be asked for: each ends a launch


def fits(blocks: Any, x: torch.Tensor, call: LayerCall, first: int, keep: Sequence[int]) -> bool:
    if call.tables is None or first not in call.tables.addresses or len(call.masks) > 1 or len(keep) > KEPT:
        return False
    (mask,) = call.masks.values()
    return isinstance(mask, Causal | Branching) and mask.window is None and is_small(blocks.shape, x)


def is_small(shape: Any, x: torch.Tensor) -> bool:
    """Whether layers of this shape and tokens [B, T, width] are what one launch is faster for."""
    return (
        x.shape[0] * x.shape[1] <= limits.ROWS
        and x.shape[1] * shape.heads <= limits.GROUP_QUERIES * shape.shared
        and max(shape.width, shape.heads * shape.size, shape.inner) <= limits.WIDEST
        and x.element_size() == 2
        and x.is_cuda
        and torch.cuda.get_device_capability(x.device) >= (9, 0)  # for its memory
    )


def run(blocks: Any, x: torch.Tensor, call: LayerCall, first: int, keep: Sequence[int]) -> tuple[torch.Tensor, Any]:
    from draftproof.kernels.llama import ops  # imports Triton

    shape, placement, tables = blocks.shape, call.placement, call.tables
    assert tables is not None
    assert isinstance(placement, Slots | NodeSlots)
    (mask,) = call.masks.values()
    slots = placement.slots
    new = ops.Decoded(slots, slots)
    if isinstance(placement, NodeSlots) and isinstance(mask, Branching):
        new = new._replace(root=placement.root, ancestors=mask.ancestors)
    sizes = ops.LayerSizes(ops.Heads(shape.heads, shape.shared, shape.size), shape.inner, shape.eps, shape.bias)
    room = call.cache[first].keys.shape[2]
    rotation, table, inputs = triton_ops.angles(call, x.dtype), tables.addresses[first], {}
    for start, stop in pairwise((0, *sorted(keep), len(table))):
        inputs[start] = x
        if stop > start:
            x = ops.megakernel(x, rotation, new, table[start:stop], room, sizes)
    return x, inputs
