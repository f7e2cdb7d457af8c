"""Muon for matrices (Jordan et al. 2024), Adam for the rest (Kingma, Ba 1412.6980), with all state on the device.

Nothing here needs a number on the host, so a whole training step can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

MOMENTUM = 0.95
BETAS = (0.9, 0.98)
EPS = 1e-8
QUINTIC = (3.4445, -4.7750, 2.0315)  # Newton-Schulz: five rounds bring singular values close to one
MOST = 1.0  # clip the norm of all gradients together


class Optimizer:
    """Float32 weights and the moments of their gradients."""

    def __init__(self, weights: Sequence[torch.Tensor], matrix: Sequence[bool]) -> None:
        self.weights, self.matrix = list(weights), list(matrix)
        self.first = [torch.zeros_like(weight) for weight in self.weights]
        # Muon needs none of these
        self.second = [
            weight.new_zeros(0 if own else weight.shape) for weight, own in zip(weights, matrix, strict=True)
        ]
        self.count = torch.zeros((), device=self.weights[0].device)

    @property
    def state(self) -> list[torch.Tensor]:
        return [*self.weights, *self.first, *self.second, self.count]

    @torch.no_grad()
    def restore(self, state: Sequence[torch.Tensor]) -> None:
        for mine, saved in zip(self.state, state, strict=True):
            mine.copy_(saved)

    @torch.no_grad()
    def step(self, gradients: Sequence[torch.Tensor], rate: torch.Tensor) -> None:
        """One step down the gradients, clipped to a joint norm of 1."""
        self.count += 1
        norm = torch.stack(torch._foreach_norm(list(gradients))).norm()
        cut = (MOST / (norm + 1e-6)).clamp_max(1)
        for n, gradient in enumerate(gradients):
            move = (self._muon if self.matrix[n] else self._adam)(n, gradient.float() * cut)
            self.weights[n].sub_(rate * move)

    def _muon(self, n: int, gradient: torch.Tensor) -> torch.Tensor:
        self.first[n].lerp_(gradient, 1 - MOMENTUM)
        x = torch.lerp(gradient, self.first[n], MOMENTUM).bfloat16()
        tall = len(x) > x.shape[1]
        x = x.T if tall else x
        x = x / x.norm().clamp_min(1e-7)
        a, b, c = QUINTIC
        for _ in range(5):
            gram = x @ x.T
            x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return (x.T if tall else x).float() * (0.2 * math.sqrt(max(gradient.shape)))  # as large as a step of Adam

    def _adam(self, n: int, gradient: torch.Tensor) -> torch.Tensor:
        first, second = self.first[n], self.second[n]
        first.lerp_(gradient, 1 - BETAS[0])
        second.lerp_(gradient.square(), 1 - BETAS[1])
        mean, spread = first / (1 - BETAS[0] ** self.count), second / (1 - BETAS[1] ** self.count)
        return mean / (spread.sqrt() + EPS)
