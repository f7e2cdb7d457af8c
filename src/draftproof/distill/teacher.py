"""The target as teacher: its hidden states and logits at every position of a text.

The text is read once, and the hidden states stay on the device if they fit, because every training step needs them
again. The logits are the output matrix times the last of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F  # noqa: N812

from draftproof.distill import loss
from draftproof.distill.data import Text
from draftproof.models.hf import HFModel

ROOM = 0.85  # share of the device's free memory for hidden states
CPU_ROOM = 2**31  # bytes
ROWS = 64  # of text per call of the target


class TeacherOutput(NamedTuple):
    """A text with the target's hidden states and logits."""

    tokens: torch.Tensor  # [B, L]
    features: torch.Tensor  # [B, L, taps * width]; empty without taps
    logits: torch.Tensor  # [B, L, V]


def run_teacher(model: HFModel, tokens: torch.Tensor, taps: tuple[int, ...]) -> TeacherOutput:
    """Run the target over tokens [B, L] without gradients."""
    network: Any = model.network
    with torch.no_grad():
        outputs = network(tokens, use_cache=False, output_hidden_states=bool(taps))
    features = torch.cat([outputs.hidden_states[tap] for tap in taps], dim=-1) if taps else outputs.logits[..., :0]
    return TeacherOutput(tokens, features, outputs.logits)


class Lesson(NamedTuple):
    """Rows of text with the target's scores to learn from."""

    teacher: TeacherOutput  # without logits
    scores: torch.Tensor  # [B, L, D] the target's logits of the tokens that can be guessed
    total: torch.Tensor  # [B, L] their normaliser over all tokens, at the text's temperature
    temperature: torch.Tensor  # [B]


class Library:
    """Rows of text and, where there is room, the target's hidden states at each of their tokens."""

    def __init__(
        self,
        model: HFModel,
        text: Text,
        taps: tuple[int, ...],
        draft_tokens: torch.Tensor | None,  # [D], None for all
        progress: Callable[[int], object] = lambda rows: None,
    ) -> None:
        self.model, self.taps, self.draft_tokens = model, taps, draft_tokens
        network: Any = model.network
        device = self.device = network.device
        self.tokens, self.drawn, self.temperature = (part.to(device) for part in text)
        self.width = int(network.config.get_text_config().hidden_size)
        self.states = taps if taps and taps[-1] == model.layers else (*taps, model.layers)
        self.output = network.get_output_embeddings()
        self.rows = self.output.weight if draft_tokens is None else self.output.weight.detach()[draft_tokens]
        self.stored: torch.Tensor | None = None
        self.total = torch.zeros(self.tokens.shape, device=device)  # of the laws, where hidden states are stored
        needed = self.tokens.numel() * len(self.states) * self.width * network.dtype.itemsize
        if needed <= _room(device) and self._is_one_product():
            self.stored = self._read(progress)
        else:
            progress(len(self.tokens))

    @torch.no_grad()
    def lesson(self, rows: torch.Tensor) -> Lesson:
        """Some rows with the target's scores."""
        tokens, temperature = self.tokens[rows].long(), self.temperature[rows]
        if self.stored is None:
            teacher = run_teacher(self.model, tokens, self.taps)
            logits, draft_tokens = teacher.logits, self.draft_tokens
            total = loss.totals(logits, temperature[:, None])
            return Lesson(
                teacher, logits if draft_tokens is None else logits.index_select(-1, draft_tokens), total, temperature
            )
        states = self.stored[rows]
        scores = F.linear(states[..., -self.width :], self.rows)
        teacher = TeacherOutput(tokens, states[..., : len(self.taps) * self.width], scores[..., :0])
        return Lesson(teacher, scores, self.total[rows], temperature)

    def _is_one_product(self) -> bool:
        """Whether the logits are exactly the output matrix times the last hidden state."""
        with torch.no_grad():
            teacher = run_teacher(self.model, self.tokens[:1, :16].long(), (self.model.layers,))
            return bool(torch.allclose(self.output(teacher.features), teacher.logits, rtol=1e-2, atol=1e-2))

    def _read(self, progress: Callable[[int], object]) -> torch.Tensor:
        network: Any = self.model.network
        shape = (*self.tokens.shape, len(self.states) * self.width)
        stored = torch.empty(shape, dtype=network.dtype, device=self.tokens.device)
        totals = torch.compile(loss.totals, dynamic=False) if stored.is_cuda else loss.totals
        for first in range(0, len(stored), ROWS):
            part = self.tokens[first : first + ROWS].long()
            with torch.no_grad():
                outputs = network.base_model(part, use_cache=False, output_hidden_states=True)
                stored[first : first + ROWS] = torch.cat([outputs.hidden_states[tap] for tap in self.states], dim=-1)
                heat = self.temperature[first : first + ROWS, None]
                self.total[first : first + ROWS] = totals(self.output(outputs.last_hidden_state), heat)
            progress(len(part))
        return stored


def _room(device: torch.device) -> int:
    if device.type != "cuda":
        return CPU_ROOM
    torch.cuda.empty_cache()
    return int(ROOM * torch.cuda.mem_get_info(device)[0])
