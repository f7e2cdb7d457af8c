"""The training loop: the same seed gives the same drafter, however often the run is interrupted and resumed.

A step depends on its number alone (which rows, which learning rate), and a checkpoint holds everything else, so a
resumed run equals one that never stopped. Weights are kept in float32 beside the network, which may compute in lower
precision. On a GPU a step is captured in a CUDA graph and replayed, because launching its thousand operations takes
longer than they do.

A guess counts as often as an engine would make it: steps begin where text is hard to guess, so a drafter guesses there
more often than the share of the text (`loss.visits`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from draftproof.distill import loss
from draftproof.distill.optimizer import Optimizer
from draftproof.distill.student import Student
from draftproof.distill.teacher import Library
from draftproof.errors import DraftproofError

FADING = 0.85  # weight of a guess relative to the one before it, in the uniform part
EVEN = 0.3  # share of the weight that is uniform over positions
BEFORE = 3  # eager steps before a step is captured


class TrainSettings(NamedTuple):
    """The settings that determine the result of a training run."""

    steps: int
    rows: int = 32  # of text in a batch
    rate: float = 2e-3
    seed: int = 0
    warmup: float = 0.03  # share of the steps
    turning: float = 0.67  # share of the steps in which the loss turns from divergence to overlap
    every: int = 100  # steps between checkpoints


class Progress(NamedTuple):
    """The report of one step."""

    step: int
    loss: torch.Tensor  # on the device: reading it waits for the step
    overlap: torch.Tensor  # by guess


class Trainer:
    """A student in training, with its float32 weights, its optimizer and the number of steps done."""

    def __init__(self, library: Library, student: Student, settings: TrainSettings) -> None:
        self.library, self.student, self.settings = library, student, settings
        device = self.device = library.device
        self.step = 0
        self.orders: dict[int, np.ndarray] = {}
        self.pieces = 1  # micro-batches per step; doubled when out of memory
        named = [(name, weight) for name, weight in student.network.named_parameters() if weight.requires_grad]
        self.weights: list[torch.Tensor] = [weight for _, weight in named]
        self.masters = [weight.detach().float().clone() for weight in self.weights]
        network: Any = library.model.network
        student.network.to(network.dtype)
        self.matrix = [weight.ndim == 2 and "embed" not in name and "tap" not in name for name, weight in named]
        self.optimizer = Optimizer(self.masters, self.matrix)
        self.rows = torch.zeros(settings.rows, dtype=torch.int64, device=device)  # fixed buffers for the graph
        self.rate, self.sharpness, self.loss = (torch.zeros((), device=device) for _ in range(3))
        self.overlap = torch.zeros(student.steps, device=device)
        # compiled, the logits are read once instead of ten times
        fast = device.type == "cuda"
        self.shortfall = torch.compile(loss.shortfall, dynamic=False) if fast else loss.shortfall
        # transformers' networks may sync with the host, so a step that runs one cannot be captured
        self.record = fast and library.stored is not None and student.tokens is not None
        self.recorded: Any = None
        self.before = BEFORE  # eager steps left, in which functions are compiled
        vocabulary = int(library.output.weight.shape[0])
        self.columns = torch.arange(vocabulary, device=device)
        if student.tokens is not None:
            self.columns = torch.full_like(self.columns, -1)
            self.columns[student.tokens] = torch.arange(len(student.tokens), device=device)

    def rehearse(self, steps: int = 15) -> float:
        """Measure the seconds per step; restores all state afterwards."""
        saved = [tensor.clone() for tensor in self.optimizer.state]
        for n in range(2 * steps):
            if n == steps:  # compiled and warm by now
                self._wait()
                start = time.perf_counter()
            self.advance()
        self._wait()
        seconds = (time.perf_counter() - start) / steps
        self.optimizer.restore(saved)
        self._refresh()
        self.step = 0
        return seconds

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def run(self, report: Callable[[Progress], object], folder: Path | None = None) -> None:
        """Run all remaining steps; checkpoints go to the folder."""
        while self.step < self.settings.steps:
            report(self.advance())
            if folder is not None and (self.step % self.settings.every == 0 or self.step == self.settings.steps):
                self.save(folder / "checkpoint.pt")
        self.publish()

    def advance(self) -> Progress:
        """Make one step, in as many micro-batches as memory requires."""
        settings = self.settings
        warm = max(int(settings.warmup * settings.steps), 1)
        scale = min((self.step + 1) / warm, 1 - (self.step - warm) / max(settings.steps - warm, 1))
        self.rate.fill_(settings.rate * scale)
        self.sharpness.fill_(min(self.step / (settings.turning * settings.steps), 1.0))
        self.rows.copy_(torch.from_numpy(self._rows()))
        while True:
            try:
                self._replay() if self.record and not self.before else self._work()
                self.before = max(self.before - 1, 0)
                break
            except torch.OutOfMemoryError as error:
                self.pieces, self.recorded, self.before = 2 * self.pieces, None, BEFORE
                if self.pieces > settings.rows:
                    raise DraftproofError("one row of text does not fit into memory: use a smaller --length") from error
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
        self.step += 1
        return Progress(self.step - 1, self.loss, self.overlap)

    def _replay(self) -> None:
        if self.recorded is None:
            self._wait()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._work()
            self.recorded = graph
        self.recorded.replay()

    def _work(self) -> None:
        """Compute the gradients of the rows and update the weights."""
        sums: list[torch.Tensor] = []
        total, overlap = torch.zeros_like(self.loss), torch.zeros_like(self.overlap)
        size = self.library.drawn[self.rows].sum().clamp_min(1)
        for rows in self.rows.chunk(self.pieces):
            value, part = self._lesson(rows, size)
            gradients = torch.autograd.grad(value, self.weights)
            sums = [mine + new for mine, new in zip(sums, gradients, strict=True)] if sums else list(gradients)
            total, overlap = total + value.detach(), overlap + part
        self.loss.copy_(total)
        self.overlap.copy_(overlap)
        self.optimizer.step([gradient.float() for gradient in sums], self.rate)
        self._refresh()

    def _lesson(self, rows: torch.Tensor, size: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss and overlap by guess of some rows of the batch, as shares of `size` laws in all."""
        student, lesson = self.student, self.library.lesson(rows)
        scores, total, heat = lesson.scores[:, 1:], lesson.total[:, 1:], lesson.temperature[:, None]
        # for the law after token i: whether the next token was drawn, and its column
        drawn = torch.nn.functional.pad(self.library.drawn[rows][:, 2:], (0, 1))
        follows = torch.nn.functional.pad(self.columns[lesson.teacher.tokens[:, 2:]], (0, 1), value=-1)
        values, overlaps, chances = [], [], []
        for k, guess in enumerate(student.guesses(lesson.teacher, student.steps)):
            value, overlap, chance = self.shortfall(guess, scores, total, heat, self.sharpness, follows)
            valid = drawn.clone()
            valid[:, :k] = False  # too early in the text for a k-th guess
            values.append(value * valid)
            overlaps.append((overlap * valid).sum())
            chances.append(chance)
        with torch.no_grad():
            fading = np.array([FADING**k for k in range(len(values))])
            even = (EVEN * fading / fading.sum()).tolist()
            visits = loss.visits(chances, drawn)
            weights = [share + (1 - EVEN) * visit for share, visit in zip(even, visits, strict=True)]
        parts = [(value * weight).sum() for value, weight in zip(values, weights, strict=True)]
        return torch.stack(parts).sum() / size, torch.stack(overlaps) / size

    def _rows(self) -> np.ndarray:
        """The rows of text of this step; every epoch has a new order."""
        count, size = len(self.library.tokens), self.settings.rows
        picked = np.arange(self.step * size, (self.step + 1) * size)
        return np.array([self._order(int(n // count))[n % count] for n in picked])

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self.orders:
            fresh = np.random.default_rng([self.settings.seed, 2, epoch]).permutation(len(self.library.tokens))
            self.orders = {**dict(list(self.orders.items())[-1:]), epoch: fresh}  # a batch may span two epochs
        return self.orders[epoch]

    @torch.no_grad()
    def _refresh(self) -> None:
        torch._foreach_copy_(self.weights, self.masters)

    def publish(self) -> None:
        """Put the float32 weights into the network."""
        self.student.network.float()
        for weight, master in zip(self.student.network.parameters(), self.masters, strict=True):
            weight.data.copy_(master)

    def save(self, path: Path) -> None:
        """Write a checkpoint atomically: an interruption leaves the previous one."""
        scratch = path.with_suffix(".part")
        torch.save({"step": self.step, "pieces": self.pieces, "optimizer": self.optimizer.state}, scratch)
        scratch.replace(path)

    def load(self, path: Path) -> None:
        """Restore a checkpoint."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.step, self.pieces = state["step"], state["pieces"]
        self.optimizer.restore(state["optimizer"])
        self._refresh()
