"""The head learns from what it will see: each own step of training is the head's drafting, entry for entry."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draftproof.distill import head
from draftproof.distill.teacher import run_teacher
from draftproof.errors import DraftproofError
from draftproof.models.llama.call import LayerCall
from draftproof.models.llama.masks import FULL
from tests.support import tiny


class Stored:
    """Keys and values, one after the other."""

    def __init__(self) -> None:
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def update(self, keys: torch.Tensor, values: torch.Tensor, placement: None, /) -> tuple[torch.Tensor, ...]:
        self.kept.append((keys, values))
        return tuple(torch.cat(part, dim=2) for part in zip(*self.kept, strict=True))


def test_training_steps_are_drafting_steps() -> None:
    """Guess k after token i, computed alone: the target's states up to token i - k, then the head's own."""
    torch.manual_seed(0)
    model = tiny.model()
    student = head.student(model, torch.arange(3, 258, 2), layers=2, steps=4)
    network = student.network
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    teacher = run_teacher(model, torch.randint(0, 258, (1, 12)), student.taps)
    embed = model.network.get_input_embeddings()
    output = model.network.get_output_embeddings().weight[network.tokens]
    for k, rows in enumerate(student.guesses(teacher, 4)):
        for i in range(k + 1, 12):
            states, first, stores = network.fuse(teacher.features[:, : i - k]), 0, [Stored(), Stored()]
            for step in range(k + 1):
                count = first + states.shape[1]
                rotation = network.rotary.at(torch.arange(first, count)[None])
                past = torch.ones(count, count).tril().bool()[None, None, first:]
                words = embed(teacher.tokens[:, first + 1 : count + 1])
                call = LayerCall(rotation, {FULL: past}, cache=stores)
                made = network(network.inputs(states, words), call, known=step == 0)
                states, first = made[:, -1:], count
            torch.testing.assert_close(rows[:, i - 1], network.logits(made[:, -1], output), rtol=1e-4, atol=1e-4)


def test_a_grown_head_guesses_as_before(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = tiny.model()
    head.student(model, torch.arange(3, 258, 2), layers=1, steps=3).save(tmp_path)
    small, large = (head.resume(model, tmp_path, 3, layers) for layers in (1, 3))
    teacher = run_teacher(model, torch.randint(0, 258, (2, 9)), small.taps)
    for one, other in zip(small.guesses(teacher, 3), large.guesses(teacher, 3), strict=True):
        torch.testing.assert_close(one, other)
    large.save(tmp_path)
    with pytest.raises(DraftproofError, match="use --layers 3"):
        head.resume(model, tmp_path, 3, 2)
