"""What is learned from: how often an engine makes a guess, and the step that the gradient asks for."""

from __future__ import annotations

import torch

from draftproof.distill import data, loss
from draftproof.distill.optimizer import Optimizer


def engine(accepted: torch.Tensor, drawn: list[bool]) -> torch.Tensor:
    """[K, T] how often guess k is made at each place, by following an engine from place to place."""
    count, length = accepted.shape
    made = torch.zeros(count, length + 2)
    for place, free in enumerate(drawn):
        if free and (place == 0 or not drawn[place - 1]):
            made[0, place] = 1.0  # the first token after what was given
        for k in range(count):
            if not free:
                made[k, place] = 0.0
                continue
            chance = accepted[k, place]
            made[0, place + 1] += made[k, place] * (1 - chance)  # refused: the next step starts behind it
            last = k == count - 1
            made[0 if last else k + 1, place + (2 if last else 1)] += made[k, place] * chance
    return made[:, :length]


def test_visits_are_those_of_an_engine() -> None:
    torch.manual_seed(0)
    accepted = torch.rand(3, 30)
    drawn = [place not in (0, 1, 9, 10, 11, 20) for place in range(30)]
    visits = loss.visits(list(accepted[:, None]), torch.tensor([drawn]), sweeps=30)
    torch.testing.assert_close(torch.cat(visits), engine(accepted, drawn))


def test_steps_are_those_of_muon_and_adam() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(6, 4), torch.randn(3, 8), torch.randn(5)]
    ours = Optimizer([weight.clone() for weight in weights], [True, True, False])
    theirs = [weight.clone().requires_grad_() for weight in weights]
    muon = torch.optim.Muon(theirs[:2], lr=0.02, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(theirs[2:], lr=0.02, betas=(0.9, 0.98), weight_decay=0.0)
    for _ in range(4):
        gradients = [torch.randn_like(weight) for weight in weights]
        ours.step(gradients, torch.tensor(0.02))
        for weight, gradient in zip(theirs, gradients, strict=True):
            weight.grad = gradient
        torch.nn.utils.clip_grad_norm_(theirs, 1.0)
        muon.step()
        adam.step()
    for one, other in zip(ours.weights, theirs, strict=True):
        torch.testing.assert_close(one, other.detach(), atol=1e-3, rtol=0)  # directions in bfloat16


def test_the_first_to_arrive_is_drawn() -> None:
    torch.manual_seed(0)
    logits, heat, noise = torch.randn(50, 9), torch.tensor([[0.7]]), torch.rand(50, 9).log().neg()
    arrival = noise / (logits / heat).softmax(-1)
    assert torch.equal(data._race(logits, heat, noise), arrival.argmin(-1))


def test_acceptance_is_the_overlap_on_average() -> None:
    """Over tokens of the target's law, min(1, q / p) averages to sum min(p, q); logits may be large."""
    torch.manual_seed(0)
    scores, guess = torch.randn(1, 7) + 300, torch.randn(1, 5)
    heat = torch.tensor([0.7])
    total, known = loss.totals(scores, heat), scores[:, :5]
    found = [
        loss.shortfall(guess, known, total, heat, torch.tensor(1.0), torch.tensor([token])) for token in range(-1, 5)
    ]
    accepted = torch.cat([one[2] for one in found])
    assert accepted[0] == 0
    p = loss.law_of(known, total, heat)[0]
    torch.testing.assert_close((p * accepted[1:]).sum(), found[0][1][0], rtol=1e-4, atol=0)
