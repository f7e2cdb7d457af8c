"""Short texts that make everything ready which the first texts of a target would wait for: kernels, or C functions.

On a GPU every kind of step is compiled for its own shapes: those here are what `draftproof generate`, `chat` and
`serve` ask for where nothing is set. On a CPU there is one set of C functions, which any text needs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

from draftproof.draft import Tree
from draftproof.engine.engine import Engine
from draftproof.engine.generate import prepare
from draftproof.engine.graph import GraphStepper
from draftproof.engine.tuning import LENGTHS, Fixed, StepReport
from draftproof.models.base import Model, default_sampling, facts
from draftproof.models.hf import HFModel
from draftproof.sampling import Sampling

CONTROLS = {
    "temperature": Sampling(temperature=0.8),
    "greedy": Sampling(temperature=0),
    "top-k": Sampling(temperature=0.8, top_k=50, top_p=0.95),
    "top-p": Sampling(temperature=0.8, top_p=0.95),
    "penalties": Sampling(temperature=0.8, repetition_penalty=1.1),
}
PROMPTS = (1, 200, 1000, 1500)  # tokens: calls of the narrowest, a middle and the widest width, and of an own one
ROWS, LENGTH = 8, 2048  # as `draftproof serve` has them

WarmText = Callable[[Model, Sequence[Model]], None]


def warm_texts(target: Model) -> dict[str, WarmText]:
    """The texts to write for this target, by name."""
    own = {"own sampling": default_sampling(target)}
    if facts(target).device != "cuda":
        return {"generate": partial(_generate, sampling=own["own sampling"])}
    texts: dict[str, WarmText] = {}
    for name, sampling in (own | CONTROLS).items():
        texts[f"generate, {name}"] = partial(_generate, sampling=sampling)
        texts[f"serve, {name}"] = partial(_serve, sampling=sampling)
    room = target.context or max(PROMPTS) + LENGTH
    return texts | {
        f"prompt of {length} tokens": partial(_generate, prompt=length, steps=2)
        for length in PROMPTS
        if length + 64 <= room
    }


def _generate(
    target: Model, drafts: Sequence[Model], sampling: Sampling | None = None, prompt: int = 20, steps: int = 8
) -> None:
    """One text as `generate` writes it without a seed, with every draft length that its tuner may choose."""
    ids = [number % target.vocabulary for number in range(prompt)]
    most = steps * (LENGTHS[-1] + 1)
    scheduler, _ = prepare(target, [ids], draft=list(drafts), sampling=_endless(target, sampling), max_new_tokens=most)
    stepper = target.kept.get("graph") if isinstance(target, HFModel) else None
    if isinstance(stepper, GraphStepper) and stepper.is_busy and stepper.tuner.tunes:
        stepper.tuner = Sweep(stepper.tree)
    while not scheduler.is_finished:
        scheduler.step()


def _serve(target: Model, drafts: Sequence[Model], sampling: Sampling) -> None:
    """A few texts as a server writes them, of which one comes later."""
    engine = Engine(target, draft=list(drafts), rows=ROWS, length=LENGTH)
    for _ in range(2):
        for length in (3, 20):
            ids = [number % target.vocabulary for number in range(length)]
            engine.add_request(ids, max_new_tokens=12, sampling=_endless(target, sampling), seed=0)
        engine.step()
    while not engine.is_finished:
        engine.step()


def _endless(target: Model, sampling: Sampling | None) -> Sampling:
    return dataclasses.replace(sampling or default_sampling(target), end_tokens=())


class Sweep(Fixed):
    """A Tuner that goes through every length that `Pace` may choose."""

    tunes = True

    def __init__(self, largest: Tree) -> None:
        super().__init__(largest)
        self._lengths = list(LENGTHS)
        self.learn()

    def learn(self, report: StepReport | None = None) -> None:
        """Go on to the next length."""
        self.tree = self.example.cut(self._lengths.pop()) if self._lengths else self.example
