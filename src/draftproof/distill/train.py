"""The training loop: the same seed gives the same drafter, however often the run is killed and resumed.

A step depends on its number alone (which rows, which temperatures, how large a step), and a checkpoint holds everything
else, so a run that goes on from one is the run that never stopped. Matrices are trained with Muon (Jordan et al. 2024),
the rest with AdamW. Weights are kept in float32 beside the network, which may compute in less.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from draftproof.distill import loss
from draftproof.distill.student import Student
from draftproof.distill.teacher import Library
from draftproof.errors import DraftproofError

TEMPERATURES = (1.0, 0.7)  # a drafter should serve both; each row of a batch is taught at one of them
FADING = 0.85  # weight of a guess against the one before it


class Settings(NamedTuple):
    """What shapes the result of a run."""

    steps: int
    rows: int = 32  # of text in a batch
    rate: float = 2e-3
    seed: int = 0
    warmup: float = 0.03  # share of the steps
    turning: float = 0.67  # share of the steps in which the loss turns from divergence to overlap
    every: int = 100  # steps from checkpoint to checkpoint


class Progress(NamedTuple):
    """What a step reports."""

    step: int
    loss: torch.Tensor  # still on the device: reading it waits for the step
    overlap: torch.Tensor  # by guess


class Trainer:
    """A student, its float32 weights, its optimizers, and how far they have come."""

    def __init__(self, library: Library, student: Student, drawn: torch.Tensor, settings: Settings) -> None:
        self.library, self.student, self.settings = library, student, settings
        network: Any = library.model.network
        device = self.device = network.device
        self.drawn = drawn.to(device)  # [R, L]
        self.step = 0
        self.orders: dict[int, np.ndarray] = {}
        self.pieces = 1  # a batch goes through in so many parts; out of memory doubles it
        named = [(name, weight) for name, weight in student.network.named_parameters() if weight.requires_grad]
        self.weights: list[torch.Tensor] = [weight for _, weight in named]
        self.masters = [weight.detach().float().clone() for weight in self.weights]
        student.network.to(network.dtype)
        large = [weight.ndim == 2 and "embed" not in name and "tap" not in name for name, weight in named]
        self.matrices = [master for master, is_large in zip(self.masters, large, strict=True) if is_large]
        self.others = [master for master, is_large in zip(self.masters, large, strict=True) if not is_large]
        self.optimizers = self._fresh()
        fast = device.type == "cuda"  # compiled, the rows of logits are read once and not ten times
        self.shortfall = torch.compile(loss.shortfall, dynamic=False) if fast else loss.shortfall
        self.totals = torch.compile(loss.totals, dynamic=False) if fast else loss.totals

    def _fresh(self) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.Muon(self.matrices, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(self.others, betas=(0.9, 0.98), weight_decay=0.0),
        ]

    def rehearse(self, steps: int = 15) -> float:
        """Seconds a step takes; everything is then as it was."""
        kept = [master.clone() for master in self.masters]
        for n in range(2 * steps):
            if n == steps:  # compiled and warm by now
                self._wait()
                start = time.perf_counter()
            self.advance()
        self._wait()
        seconds = (time.perf_counter() - start) / steps
        with torch.no_grad():
            torch._foreach_copy_(self.masters, kept)
            torch._foreach_copy_(self.weights, self.masters)
        self.optimizers, self.step = self._fresh(), 0
        return seconds

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def run(self, report: Callable[[Progress], object], folder: Path | None = None) -> None:
        """All steps that are left; checkpoints go to the folder."""
        while self.step < self.settings.steps:
            report(self.advance())
            if folder is not None and (self.step % self.settings.every == 0 or self.step == self.settings.steps):
                self.save(folder / "checkpoint.pt")
        self.publish()

    def advance(self) -> Progress:
        """One step, in as many parts as the memory needs."""
        while True:
            try:
                made = self._gradient()
                break
            except torch.OutOfMemoryError as error:
                self.pieces *= 2
                if self.pieces > self.settings.rows:
                    raise DraftproofError("one row of text does not fit into memory: use a smaller --length") from error
                for weight in self.weights:
                    weight.grad = None
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
        self._update()
        self.step += 1
        return made

    def _gradient(self) -> Progress:
        settings, student = self.settings, self.student
        rng = np.random.default_rng([settings.seed, 1, self.step])
        device = self.device
        chosen = torch.from_numpy(self._rows()).to(device)
        heat = torch.from_numpy(rng.choice(np.array(TEMPERATURES, dtype=np.float32), len(chosen))).to(device)
        sharpness = torch.tensor(min(self.step / (settings.turning * settings.steps), 1.0), device=device)
        weight = self.drawn[chosen].roll(-1, dims=1)[:, 1:].float()  # of the law after token i: i + 1 was drawn
        weight[:, -1] = 0.0
        size = weight.sum().clamp_min(1)
        shares = np.array([FADING**k for k in range(student.steps)])
        shares /= shares.sum()
        total = torch.zeros((), device=device)
        overlaps = torch.zeros(student.steps, device=device)
        for rows, temperature, each in zip(*(part.chunk(self.pieces) for part in (chosen, heat, weight)), strict=True):
            seen = self.library.see(rows)
            after = seen.logits[:, 1:]
            scores = after if student.tokens is None else after.index_select(-1, student.tokens)
            normaliser = self.totals(after, temperature[:, None])
            losses = []
            for k, guess in enumerate(student.guesses(seen, student.steps)):
                value, overlap = self.shortfall(guess, scores, normaliser, temperature[:, None], sharpness)
                share = each.clone()
                share[:, :k] = 0.0  # too early in the text for a k-th guess
                losses.append(shares[k] * (value * share).sum() / size)
                overlaps[k] += (overlap * share).sum() / size
            part = torch.stack(losses).sum()
            part.backward()  # type: ignore[no-untyped-call]
            total += part.detach()
        return Progress(self.step, total, overlaps)

    def _rows(self) -> np.ndarray:
        """The batch's rows of text: a new order every time the text has been gone through."""
        count, size = len(self.drawn), self.settings.rows
        picked = np.arange(self.step * size, (self.step + 1) * size)
        return np.array([self._order(int(n // count))[n % count] for n in picked])

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self.orders:
            fresh = np.random.default_rng([self.settings.seed, 2, epoch]).permutation(len(self.drawn))
            self.orders = {**dict(list(self.orders.items())[-1:]), epoch: fresh}  # a batch may straddle two
        return self.orders[epoch]

    def _update(self) -> None:
        settings = self.settings
        warm = max(int(settings.warmup * settings.steps), 1)
        scale = min((self.step + 1) / warm, 1 - (self.step - warm) / max(settings.steps - warm, 1))
        for master, weight in zip(self.masters, self.weights, strict=True):
            master.grad = weight.grad.float() if weight.grad is not None else None
            weight.grad = None
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = settings.rate * scale
            optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self.weights, self.masters)

    def publish(self) -> None:
        """Put the float32 weights into the network."""
        self.student.network.float()
        for weight, master in zip(self.student.network.parameters(), self.masters, strict=True):
            weight.data.copy_(master)

    def save(self, path: Path) -> None:
        """All or nothing: a kill leaves the checkpoint before."""
        state = {
            "step": self.step,
            "pieces": self.pieces,
            "masters": self.masters,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        scratch = path.with_suffix(".part")
        torch.save(state, scratch)
        scratch.replace(path)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.step, self.pieces = state["step"], state["pieces"]
        with torch.no_grad():
            torch._foreach_copy_(self.masters, state["masters"])
            torch._foreach_copy_(self.weights, self.masters)
        for optimizer, kept in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
