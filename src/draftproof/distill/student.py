"""Student: the common interface of heads and models in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from draftproof.distill.teacher import TeacherOutput


class Student(NamedTuple):
    """A drafter in training.

    `guesses` yields the draft's logits [B, L - 1, D] after tokens 1, 2, ..., for guesses 1, 2, ... of a draft: guess k
    after token i depends on what the target knew k tokens before, so those with i < k are not used.
    """

    network: nn.Module
    taps: tuple[int, ...]  # hidden states of the target that it reads
    tokens: torch.Tensor | None  # [D] ids it can guess, None for all
    steps: int  # guesses it is trained for
    guesses: Callable[[TeacherOutput, int], Iterator[torch.Tensor]]
    save: Callable[[Path], None]
