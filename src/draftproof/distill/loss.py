"""What a drafter is trained for: the overlap sum min(p, q), which is the acceptance of one guess (DistillSpec, Zhou
et al. 2310.08461, total variation).

Total variation has no pull where q is far below p, so training begins with the Kullback-Leibler divergence and turns
to total variation as it goes. Laws outside the draft vocabulary are out of reach: p keeps its mass there, and that
part only lowers the overlap that can be had.
"""

from __future__ import annotations

import torch

LEAST = 0.1  # share of the divergence that stays to the end, for the tails


def law_of(scores: torch.Tensor, total: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """The target's law on the draft vocabulary: scores [..., D] of its logits, total [...] as made by `totals`."""
    return torch.exp(scores.float() / temperature[..., None] - total[..., None])


def totals(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """log sum exp of logits [..., V] / temperature [...]: the normaliser over the whole vocabulary."""
    return torch.logsumexp(logits.float() / temperature[..., None], dim=-1)


def shortfall(
    guess: torch.Tensor, scores: torch.Tensor, total: torch.Tensor, temperature: torch.Tensor, sharpness: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and overlap of each row: the draft's logits [..., D] against the target's scores [..., D].

    sharpness is 0 for pure divergence and 1 for as much total variation as there may be.
    """
    p = law_of(scores, total, temperature)
    logarithm = torch.log_softmax(guess.float() / temperature[..., None], dim=-1)
    divergence = -(p * logarithm).sum(-1)
    overlap = torch.minimum(p, logarithm.exp()).sum(-1)
    share = sharpness * (1 - LEAST)
    return (1 - share) * divergence - share * overlap, overlap.detach()
