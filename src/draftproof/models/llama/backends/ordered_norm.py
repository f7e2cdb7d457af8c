"""RMSNorm whose sums run in one order, so that it is the same on every processor."""

from __future__ import annotations

import torch
from torch import nn

from draftproof import native
from draftproof.models.llama import ordered


class OrderedNorm(nn.RMSNorm):
    """An RMSNorm as a quantised network has it: in C, or in torch to the last bit the same."""

    @staticmethod
    def of(norm: nn.RMSNorm) -> OrderedNorm:
        new = OrderedNorm(norm.normalized_shape, norm.eps, device="meta")
        new.weight = norm.weight
        return new

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, weight, eps = x.contiguous(), self.weight.detach(), self.eps or 0.0
        return native.norm(x, weight, eps) if native.fits(x, None) else ordered.norm(x, weight, eps)
