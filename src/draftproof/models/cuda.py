"""Parts of a layer as Triton kernels, for calls of few tokens on a GPU: what draftproof.native is on a CPU.

A call of few tokens takes as long as its weights take to be read, and then some microseconds for every kernel. torch
needs some thirty of them for a layer, mostly for attention. Here it is eight, four of which are cuBLAS's products; or
five in a small network, a drafter, whose products do the rest.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import nn

from draftproof import kernels

TOKENS, QUERIES = 16, 64  # of a row in a call; queries for each head of keys
BLOCK = 64  # slots that are looked at at once
CHUNK = 256  # slots, more than which are split among programs
WIDTH, ROWS = 2048, 16  # of a small network; tokens in all, above which cuBLAS is faster
PROGRAMS, SPLITS = 264, 32  # that a call makes if there is work for them; of a row and head at most


class Causal(NamedTuple):
    """The mask of straight texts by its rule, for `attend`: a token sees the slots up to its own.

    Slot 0 is seen by tokens in slot 0 alone.
    """

    own: torch.Tensor  # [B, T] int64 slots of the tokens, ascending by one, but that 0 may be repeated
    window: int | None = None  # slots that a token sees at most

    def over(self, slots: torch.Tensor) -> torch.Tensor:
        """[B, T, S]: the same written out, which of these slots [S] each token sees."""
        own = self.own[..., None]
        seen = (slots <= own) & ((slots > 0) | (own == 0))
        return seen if self.window is None else seen & (own - slots < self.window)


def fits(blocks: Any, tokens: int) -> bool:
    """Whether these layers can do a call of so many tokens a row by the kernels here."""
    if not len(blocks) or tokens > TOKENS or not kernels.available():
        return False
    shape, weight = blocks[0].shape, blocks[0].norm_in.weight
    return (
        weight.is_cuda
        and weight.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and shape.size in (16, 32, 64, 128)
        and tokens * shape.heads <= QUERIES * shape.shared
        and all(type(linear) is nn.Linear for block in blocks for linear in block.linears)
    )


def angles(positions: torch.Tensor, frequencies: torch.Tensor, scale: float, dtype: torch.dtype) -> list[torch.Tensor]:
    """Cosine and sine of llama.Rotation [B, 1, T, size], at positions [B, T]."""
    from draftproof.kernels import launch, layer  # imports Triton

    positions, (batch, tokens), size = positions.contiguous(), positions.shape, 2 * len(frequencies)
    made = [torch.empty(batch, 1, tokens, size, dtype=dtype, device=positions.device) for _ in range(2)]
    with launch.on(positions.device):
        layer.angles[(batch * tokens,)](positions, frequencies, *made, scale, D=size, num_warps=1)
    return made


def small(x: torch.Tensor, shape: Any) -> bool:
    """Whether `product` takes these tokens [B, T, width] through a layer."""
    widest = max(shape.width, shape.heads * shape.size, shape.inner)
    return x.shape[0] * x.shape[1] <= ROWS and widest <= WIDTH and x.element_size() == 2


def product(
    x: torch.Tensor,
    linear: nn.Linear,
    norm: nn.RMSNorm | None = None,
    added: torch.Tensor | None = None,
    gate: bool = False,
) -> torch.Tensor:
    """linear(norm(x)) + added, x [B, T, K] and added [B, T, N]; or half as wide, with `gate` done on it."""
    from draftproof.kernels import launch
    from draftproof.kernels.product import product as kernel

    x, (outputs, inputs) = x.contiguous(), linear.weight.shape
    outputs //= 2 if gate else 1
    out = x.new_empty(*x.shape[:-1], outputs)
    gain, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps or 0.0)
    rows, chunks, columns, early = x.shape[0] * x.shape[1], 8, 16, launch.begins_early(x.device)
    with launch.on(x.device):
        kernel[(-(-outputs // columns),)](
            x, linear.weight, gain, linear.bias, added, out, rows, outputs, inputs, eps,
            GATE=gate, C=chunks, BK=_power(-(-inputs // chunks)), BN=columns, EARLY=early,
            num_warps=chunks, launch_pdl=early,
        )  # fmt: skip
    return out


def attend(joint: torch.Tensor, rotation: Any, rule: Causal, store: Any, heads: int, shared: int) -> torch.Tensor:
    """Queries, keys and values side by side [B, T, ...] -> [B, T, heads * size].

    Queries and keys are turned, and keys and values kept in the store (a layer of a SlotCache), as Block says it.
    """
    from draftproof.kernels import launch, layer  # imports Triton

    batch, tokens, width = joint.shape
    size, group = width // (heads + 2 * shared), heads // shared
    if not store.is_initialized:
        new = joint.view(batch, tokens, -1, size).transpose(1, 2)[:, -shared:]
        store.lazy_initialization(new, new)
    keys, values = store.keys[store.cache.first :], store.values[store.cache.first :]
    queries, slots = _power(tokens * group), store.keys.shape[2]
    splits = max(min(PROGRAMS // (batch * shared), SPLITS, -(-slots // CHUNK)), 1)
    out = joint.new_empty(batch, tokens, heads * size)
    count = batch * shared * splits * queries
    peaks, norms, sums = (joint.new_empty(count * width, dtype=torch.float32) for width in (1, 1, size))
    early = launch.begins_early(joint.device)
    large = queries * size > 4096 or joint.element_size() == 4  # for the registers of four warps
    with launch.on(joint.device):
        layer.attend[(shared, splits, batch)](
            joint, rotation.cos.contiguous(), rotation.sin.contiguous(), rule.own.contiguous(), keys, values, out,
            peaks, norms, sums, store.arrived, rule.window or 0, math.log2(math.e) / math.sqrt(size),
            tokens, group, heads, splits, slots,
            D=size, M=queries, NEW=_power(tokens), BLOCK=BLOCK // 2 if large else BLOCK, CHUNK=CHUNK,
            WINDOW=rule.window is not None, EARLY=early, num_warps=8 if large else 4, launch_pdl=early,
        )  # fmt: skip
    return out


def norm(x: torch.Tensor, weights: nn.RMSNorm) -> torch.Tensor:
    """RMSNorm of x [B, T, width]."""
    return _norm(x, None, weights)[1]


def add_norm(x: torch.Tensor, added: torch.Tensor, weights: nn.RMSNorm) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of both [B, T, width], and its RMSNorm."""
    return _norm(x, added, weights)


def gate(joint: torch.Tensor) -> torch.Tensor:
    """[B, T, 2 * width] -> silu(first half) * second half."""
    from draftproof.kernels import launch, layer

    width, block = joint.shape[-1] // 2, 1024
    out = joint.new_empty(*joint.shape[:-1], width)
    early = launch.begins_early(joint.device)
    with launch.on(joint.device):
        layer.gate[(joint.numel() // (2 * width), -(-width // block))](
            joint, out, width, W=block, EARLY=early, num_warps=4, launch_pdl=early
        )
    return out


def _norm(x: torch.Tensor, added: torch.Tensor | None, weights: nn.RMSNorm) -> tuple[torch.Tensor, torch.Tensor]:
    from draftproof.kernels import launch, layer

    x, width = x.contiguous(), x.shape[-1]
    total, out = x if added is None else torch.empty_like(x), torch.empty_like(x)
    block, early = _power(width), launch.begins_early(x.device)
    with launch.on(x.device):
        layer.norm[(x.numel() // width,)](
            x, added, weights.weight, total, out, weights.eps or 0.0, width,
            W=block, EARLY=early, num_warps=8 if block > 1024 else 4, launch_pdl=early,
        )  # fmt: skip
    return total, out


def _power(count: int) -> int:
    """The next power of 2, at least 16: sides of matrices that are multiplied."""
    return max(16, 1 << (count - 1).bit_length())
