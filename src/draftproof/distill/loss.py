"""The training loss: the overlap sum min(p, q), which is the acceptance of one draft token (DistillSpec, 2310.08461).

The overlap is one minus the total variation, which has no gradient where q is far below p, so training begins with the
Kullback-Leibler divergence and turns to total variation gradually. Tokens outside the draft vocabulary cannot be
guessed: p keeps its mass there, which only lowers the overlap that is possible.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

LEAST = 0.1  # share of the divergence at the end of training, for the tails


def law_of(scores: torch.Tensor, total: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """The target's law on the draft vocabulary: scores [..., D] of its logits, total [...] from `totals`."""
    return torch.exp(scores.float() / temperature[..., None] - total[..., None])


def totals(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Log-sum-exp of logits [..., V] / temperature [...]: the normaliser over the whole vocabulary."""
    return torch.logsumexp(logits.float() / temperature[..., None], dim=-1)


def shortfall(
    guess: torch.Tensor,
    scores: torch.Tensor,
    total: torch.Tensor,
    temperature: torch.Tensor,
    sharpness: torch.Tensor,
    follows: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loss, overlap and acceptance of each row: the draft's logits [..., D] against the target's scores [..., D].

    sharpness is 0 for pure divergence and 1 for the most total variation. follows [...] is the column of the token that
    follows in the text, -1 for one that cannot be guessed: if it was guessed, it was accepted with probability
    min(1, q / p).
    """
    p = law_of(scores, total, temperature)
    logarithm = torch.log_softmax(guess.float() / temperature[..., None], dim=-1)
    divergence = -(p * logarithm).sum(-1)
    overlap = torch.minimum(p, logarithm.exp()).sum(-1)
    share = sharpness * (1 - LEAST)
    column = follows.clamp_min(0)[..., None]
    above = logarithm.detach().gather(-1, column) - scores.gather(-1, column).float() / temperature[..., None]
    accepted = torch.where(follows < 0, 0.0, torch.exp((above[..., 0] + total).clamp_max(0)))
    return (1 - share) * divergence - share * overlap, overlap.detach(), accepted


def visits(accepted: Sequence[torch.Tensor], drawn: torch.Tensor, sweeps: int = 8) -> list[torch.Tensor]:
    """How often an engine makes guess 1, 2, ... at each position of a text, [B, T] each.

    Given the text, its token at a position was accepted as guess k with probability accepted[k] [B, T]; the next step
    starts after a refusal, or after the bonus token of a step whose guesses were all accepted. Where a text was given
    and not drawn, every position starts a step. Each sweep propagates the starts of steps by one step.
    """
    count = len(accepted)
    follows_given = ~_later(drawn, 1)
    starts = 0.5 * drawn.float()
    for _ in range(sweeps + 1):
        reach, refused = [starts], starts * (1 - accepted[0])
        for k in range(1, count):
            reach.append(_later(reach[-1] * accepted[k - 1], 1) * drawn)
            refused = refused + reach[-1] * (1 - accepted[k])
        starts = _later(refused, 1) + _later(reach[-1] * accepted[-1], 2)
        starts = torch.where(follows_given, 1.0, starts) * drawn
    return reach


def _later(values: torch.Tensor, places: int) -> torch.Tensor:
    """Values [B, T] shifted to later positions."""
    return torch.nn.functional.pad(values[:, :-places], (places, 0))
