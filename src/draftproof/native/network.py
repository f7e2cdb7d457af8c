"""A call of a whole network of the Llama family in one C function.

Between two calls of few tokens the weights have driven everything else out of the caches, so each of the dozen torch
operations around the layers takes tens of microseconds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import RMSNorm

from draftproof.native import build
from draftproof.native.build import MaskStruct, Sizes
from draftproof.native.layers import LinearStruct, NativeLinear, Stack, parts, places, workspace


class NetworkStruct(ctypes.Structure):
    """A network, as network.c has it."""

    _fields_ = (
        ("layers", ctypes.c_void_p),
        ("count", ctypes.c_long),
        *((name, ctypes.c_void_p) for name in ("embeddings", "norm")),
        ("eps", ctypes.c_float),
        ("output", LinearStruct),
    )


class NativeNetwork(NamedTuple):
    """A network that C calls as a whole, and what keeps its weights in memory."""

    struct: NetworkStruct
    kept: tuple[Any, ...]
    masks: Any  # array of MaskStruct, one for each layer
    heads: tuple[int, int, int]  # of queries, of keys and values, and their size
    width: int  # of its states
    widest: int  # of the widest thing a token becomes


def lay_out_network(
    stack: Stack,
    heads: tuple[int, int, int],
    embeddings: torch.Tensor,
    norm: RMSNorm,
    output: NativeLinear,
    masks: Sequence[MaskStruct],
) -> NativeNetwork:
    """A network for `forward`: what its layers, its tokens' embeddings [V, width] and its output rows are."""
    count = len(stack.layers)
    struct = NetworkStruct(
        ctypes.addressof(stack.layers), count, embeddings.data_ptr(), norm.weight.data_ptr(), norm.eps, output.struct
    )
    kept = (stack, embeddings, norm.weight, output)
    return NativeNetwork(struct, kept, (MaskStruct * count)(*masks), heads, embeddings.shape[1], stack.width)


def forward(
    network: NativeNetwork,
    ids: torch.Tensor,
    positions: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor],
    slots: tuple[int, int],
    cache: tuple[Any, int],
    keep: int,
    states: Sequence[int],
) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """The logits [1, keep, V] of the last tokens of one text, and states [1, T, width] by number.

    ids, positions  [1, T] int64, contiguous
    angles          cosine and sine of every position, a row each
    slots           the first one that is written, and the first that is read
    cache           the `addresses` of its buffers, and how many slots those have
    states          which to return: n is what layer n is given, the number of layers what the output rows are given
    """
    tokens, count, (pointers, room) = ids.shape[1], network.struct.count, cache
    start, begin = slots
    sizes = Sizes(1, tokens, *network.heads, room, start, begin, start + tokens, 0, 0)
    inner = tuple(number for number in states if number < count)
    x = angles[0].new_empty((1, tokens, network.width))
    some = x.new_empty((len(inner), *x.shape))
    logits = x.new_empty((1, keep, network.struct.output.outputs))
    work = workspace(x, tokens, network.widest, network.width)
    build.compiled().network(
        ctypes.byref(network.struct),
        sizes,
        *(ids.data_ptr(), positions.data_ptr()),
        *(part.data_ptr() for part in angles),
        pointers,
        network.masks,
        keep,
        count in states,
        x.data_ptr(),
        some.data_ptr() if inner else None,
        places(inner, count),
        logits.data_ptr(),
        *parts(work, network.widest, network.width),
    )
    found = dict(zip(inner, some, strict=True)) if inner else {}
    return logits, found | ({count: x} if count in states else {})
