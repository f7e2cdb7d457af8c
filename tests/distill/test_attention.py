"""Attention of guesses: the two parts, joined, are attention under one mask, forward and backward."""

from __future__ import annotations

import torch

from draftproof.distill.attention import TrainingEntries


def dense(queries: list[torch.Tensor], keys: list[torch.Tensor], values: list[torch.Tensor]) -> list[torch.Tensor]:
    """All steps' keys side by side, and a mask: the target's entries up to t - k, then one own entry of each step."""
    made = []
    t, s = torch.arange(queries[0].shape[2])[:, None], torch.arange(queries[0].shape[2])[None]
    for k, query in enumerate(queries):
        mask = torch.cat([s <= t - k, *(s == t - k + earlier for earlier in range(1, k + 1))], dim=1)
        every = torch.cat(keys[: k + 1], dim=2), torch.cat(values[: k + 1], dim=2)
        made.append(torch.nn.functional.scaled_dot_product_attention(query, *every, attn_mask=mask)[:, :, k:])
    return made


def joined(queries: list[torch.Tensor], keys: list[torch.Tensor], values: list[torch.Tensor]) -> list[torch.Tensor]:
    entries = TrainingEntries()
    return [entries.attend(*three)[:, :, k:] for k, three in enumerate(zip(queries, keys, values, strict=True))]


def test_joined_attention_is_attention_under_one_mask() -> None:
    torch.manual_seed(0)
    parts = [[torch.randn(2, 3, 19, 8, requires_grad=True) for _ in range(4)] for _ in range(3)]
    weights = [torch.randn(2, 3, 19 - k, 8) for k in range(4)]
    found = []
    for attend in (dense, joined):
        made = attend(*parts)
        total = torch.stack([(one * weight).sum() for one, weight in zip(made, weights, strict=True)]).sum()
        found.append([*made, *torch.autograd.grad(total, [tensor for part in parts for tensor in part])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
