"""Attention for training a head on its own draft tokens: causal over the target's entries, then one entry per step.

Entries of the target are many and form a causal triangle, which flash attention does; own entries are few, and each
score is one dot product. The two parts are merged by their normalisers, as in ring attention (Liu et al. 2310.01889).
The backward pass of the kernel is right for its part if it is given the merged output and normaliser.
"""

from __future__ import annotations

import math
from typing import Any

import torch

aten: Any = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)  # precisions of flash attention on CUDA


class TrainingEntries:
    """Keys and values [B, heads, T, size] of one layer: of the target's entries, then of each own step."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attention output [B, heads, T, size]: in step k, query t sees entries up to t - k and its own since."""
        copies = query.shape[1] // key.shape[1]  # query heads that share a KV head
        if copies > 1:
            key, value = (part.repeat_interleave(copies, dim=1) for part in (key, value))
        self.keys.append(key)
        self.values.append(value)
        steps = len(self.keys) - 1
        length = query.shape[2] - steps  # the first few have no past that long, and no meaning
        aligned = [part[:, :, j : j + length] for own in (self.keys, self.values) for j, part in enumerate(own)]
        output = _MergedAttention.apply(query[:, :, steps:], *aligned)  # type: ignore[no-untyped-call]
        return torch.nn.functional.pad(output, (0, 0, steps, 0))


class _MergedAttention(torch.autograd.Function):
    """Attention of query t over keys 0 to t of the first part, and over key t of every other part."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        keys, values = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        output, total, ctx.rest = _causal(query, keys[0], values[0])
        if len(keys) > 1:
            scores = torch.stack([total, *(_dot(query, key) for key in keys[1:])])
            total = torch.logsumexp(scores, dim=0)
            shares = torch.exp(scores - total)[..., None].to(query.dtype)
            output = output * shares[0]
            for share, value in zip(shares[1:], values[1:], strict=True):
                output = torch.addcmul(output, share, value)
        ctx.save_for_backward(query, *parts, output, total)
        return output

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, *parts, output, total = ctx.saved_tensors
        keys, values = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        grad = grad.contiguous()
        grad_query, grad_key, grad_value = _causal_backward(grad, query, keys[0], values[0], output, total, ctx.rest)
        key_grads, value_grads = [grad_key], [grad_value]
        level = (grad * output).sum(-1, dtype=torch.float32) if len(keys) > 1 else None
        for key, value in zip(keys[1:], values[1:], strict=True):
            share = torch.exp(_dot(query, key) - total)
            pull = (share * ((grad * value).sum(-1, dtype=torch.float32) - level))[..., None] / math.sqrt(
                query.shape[-1]
            )
            grad_query = torch.addcmul(grad_query, pull.to(query.dtype), key)
            key_grads.append(pull.to(query.dtype) * query)
            value_grads.append(share[..., None].to(query.dtype) * grad)
        return (grad_query, *key_grads, *value_grads)


def _dot(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return (query * key).sum(-1, dtype=torch.float32) / math.sqrt(query.shape[-1])


def _causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Output [B, heads, T, size], log of the normaliser [B, heads, T], and what the backward pass asks for."""
    if query.device.type == "cpu":
        output, total = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, True)
        return output, total, None
    if query.dtype in HALVES:
        output, total, *rest = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, True)
        return output, total, rest[:6]
    output, total, *rest = aten._scaled_dot_product_efficient_attention(query, key, value, None, True, 0.0, True)
    return output, total[..., : query.shape[2]], (total, rest)


def _causal_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    total: torch.Tensor,
    rest: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    given = (grad, query, key, value)
    if query.device.type == "cpu":
        back = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return back(*given, output, total, 0.0, True)  # type: ignore[no-any-return]
    if query.dtype in HALVES:
        cum_query, cum_key, most_query, most_key, seed, offset = rest
        back = aten._scaled_dot_product_flash_attention_backward
        saved = (cum_query, cum_key, most_query, most_key, 0.0, True, seed, offset)
        return back(*given, output, total, *saved)  # type: ignore[no-any-return]
    padded, (seed, offset) = rest
    padded = padded.clone()
    padded[..., : query.shape[2]] = total
    back = aten._scaled_dot_product_efficient_attention_backward
    return back(*given, None, output, padded, seed, offset, 0.0, [True, True, True, False], True)[:3]  # type: ignore[no-any-return]
