"""Student: what the two kinds of drafter have in common while they learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from draftproof.distill.teacher import Seen


class Student(NamedTuple):
    """A network in training.

    `guesses` yields the draft's logits [B, L - 1, D] after tokens 1, 2, ..., for guesses 1, 2, ... of a draft: guess k
    after token i knows what the target knew k tokens before, so those with i < k mean nothing.
    """

    network: nn.Module
    taps: tuple[int, ...]  # hidden states of the target that it reads
    tokens: torch.Tensor | None  # [D] ids it can guess, None for all
    steps: int  # guesses it is trained for
    guesses: Callable[[Seen, int], Iterator[torch.Tensor]]
    save: Callable[[Path], None]
