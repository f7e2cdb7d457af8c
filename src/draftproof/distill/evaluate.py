"""How good a drafter is on text it has not seen: overlap by guess and temperature, and tokens per target call.

The text is the target's own, so the accepted length of a chain needs no drafting: a path x from p is as good as
one from q, for sum prod min(p, q) is the mean of prod min(1, q / p) over p. So there is no noise of accepting in it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from draftproof.distill import loss
from draftproof.distill.data import Text
from draftproof.distill.student import Student
from draftproof.distill.teacher import see
from draftproof.models.hf import HFModel


class Quality(NamedTuple):
    """At one temperature."""

    temperature: float
    overlap: list[float]  # of the first, second, ... guess
    reach: float  # mass of p on the draft vocabulary: the most that any training could have reached
    tokens: list[float]  # per target call, token by token verification, for chains of 1, 2, ... guesses
    laws: int  # how many were compared

    def as_dict(self) -> dict[str, Any]:
        return self._asdict()


@torch.no_grad()
def measure(
    model: HFModel, student: Student, text: Text, temperature: float, guesses: int = 5, rows: int = 16
) -> Quality:
    """On the rows of text that were drawn at this temperature."""
    device = model.network.device
    own = (text.temperature - temperature).abs() < 1e-6
    tokens, drawn = text.tokens[own], text.drawn[own]
    sums = torch.zeros(guesses, dtype=torch.float64, device=device)
    reached = torch.zeros(guesses, dtype=torch.float64, device=device)
    counts, starts = torch.zeros_like(sums), torch.zeros((), dtype=torch.float64, device=device)
    mass = torch.zeros_like(starts)
    student.network.to(model.network.dtype)
    for first in range(0, len(tokens), rows):
        ids = tokens[first : first + rows].long().to(device)
        mine = drawn[first : first + rows, 2:].to(device)  # [b, L - 2] the token after law i is the target's
        seen = see(model, ids, student.taps)
        after = seen.logits[:, 1:-1]
        heat = torch.full((1, 1), temperature, device=device)
        total = loss.totals(after, heat)
        scores = after if student.tokens is None else after.index_select(-1, student.tokens)
        p = loss.law_of(scores, total, heat)
        p_next = torch.exp(after.gather(-1, ids[:, 2:, None])[..., 0].float() / temperature - total)
        column, inside = _columns(student, ids[:, 2:])
        mass += (p.sum(-1) * mine).sum()
        ratios = []
        guess = None
        given = student.guesses(seen, guesses)
        for k in range(guesses):
            guess = next(given, guess)  # a model of its own guesses alike at every place
            assert guess is not None
            q = torch.softmax(guess[:, :-1].float() / temperature, dim=-1)
            valid = mine.clone()
            valid[:, :k] = False
            sums[k] += (torch.minimum(p, q).sum(-1) * valid).sum()
            counts[k] += valid.sum()
            ratio = q.gather(-1, column[..., None])[..., 0] * inside / p_next
            ratios.append(ratio.clamp_max(1.0))
        length = mine.shape[1] - guesses + 1
        whole = torch.stack([mine[:, k : k + length] for k in range(guesses)]).all(dim=0)
        path = whole.double()
        starts += path.sum()
        for k, ratio in enumerate(ratios):
            path = path * ratio[:, k : k + length]
            reached[k] += path.sum()
    tokens_by_length = 1 + (reached / starts).cumsum(0)
    reach = float(mass / counts[0])
    return Quality(temperature, (sums / counts).tolist(), reach, tokens_by_length.tolist(), int(counts[0]))


def _columns(student: Student, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the tokens stand in the draft vocabulary, and whether they do."""
    if student.tokens is None:
        return ids, torch.ones_like(ids, dtype=torch.bool)
    column = torch.searchsorted(student.tokens, ids.contiguous()).clamp_max(len(student.tokens) - 1)
    return column, student.tokens[column] == ids
