"""What the kernels look up on the device, made once when a network and its cache are opened.

A CUDA graph cannot copy from the host while it is captured, so nothing of this may be made in a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from draftproof import kernels
from draftproof.kernels.llama import limits
from draftproof.models.llama.backends import triton_ops

if TYPE_CHECKING:
    from draftproof.kernels.llama.ops import Buffers


class KernelTables(NamedTuple):
    """Addresses of the weights of one network and of the buffers of one cache, and counters for its attention."""

    # by the first layer of a call: [layers, 9] int64, a row for each layer from there on
    addresses: Mapping[int, torch.Tensor]
    arrivals: torch.Tensor  # [layers, ...] int32 counters of decode_attention, zero between calls

    @staticmethod
    def of(blocks: Any, cache: Any, firsts: Sequence[int] = (0,)) -> KernelTables:
        """Of Blocks and a SlotCache whose buffers are allocated, for calls that begin at these layers."""
        rows = [_addresses(block, layer) for block, layer in zip(blocks, cache.layers, strict=True)]
        device, (batch, heads, _, _) = cache.layers[0].keys.device, cache.layers[0].keys.shape
        tables = {first: torch.tensor(rows[first:], dtype=torch.int64, device=device) for first in firsts}
        counters = (len(rows), batch * heads * limits.QUERY_PARTS)
        return KernelTables(tables, torch.zeros(counters, dtype=torch.int32, device=device))


def _addresses(block: Any, layer: Any) -> list[int]:
    """A row of the table, as kernels/llama/megakernel.py numbers its columns."""
    weights = [linear.weight for linear in block.linears] + [block.norm_in.weight, block.norm_mlp.weight]
    bias = weights[0] if block.qkv.bias is None else block.qkv.bias
    return [tensor.data_ptr() for tensor in (*weights, layer.keys, layer.values, bias)]


def open_tables(blocks: Any, cache: Any, firsts: Sequence[int] = (0,)) -> KernelTables | None:
    """The tables of a network that the kernels can run, else None."""
    return KernelTables.of(blocks, cache, firsts) if triton_ops.supports(blocks) else None


def open_buffers(buffers: list[torch.Tensor]) -> Buffers | None:
    """All buffers of a cache for `compact`, where a kernel can move their entries together; else None."""
    if not movable(buffers):
        return None
    from draftproof.kernels.llama.ops import Buffers  # imports Triton

    return Buffers.of(buffers)


def movable(buffers: Sequence[torch.Tensor]) -> bool:
    """Whether one kernel can move entries of all these buffers."""
    same = all(buffer.is_cuda and buffer.dtype == buffers[0].dtype for buffer in buffers)
    return same and kernels.available(buffers[0].device)


def compact(buffers: Buffers, root: torch.Tensor, path: torch.Tensor, count: torch.Tensor) -> None:
    """What SlotCache.compact does, in one launch."""
    from draftproof.kernels.llama.ops import compact_cache

    compact_cache(buffers, root, path, count)
