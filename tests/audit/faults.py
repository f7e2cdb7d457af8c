"""Engines with one deliberate fault each, on small Markov tables: what an audit must find, and what it must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from draftproof.audit.rows import Read
from draftproof.audit.run import Auditor
from draftproof.audit.transcripts import Transcript
from draftproof.models.table import TableModel
from draftproof.sampling import Sampling, law

Law = Callable[[tuple[int, ...]], np.ndarray]  # tokens so far -> [V]


class World(NamedTuple):
    """A target and a draft that look one token back."""

    p: np.ndarray  # [V, V] logits of the target
    q: np.ndarray  # [V, V] of the draft

    @property
    def size(self) -> int:
        return len(self.p)


def world(seed: int, size: int, closeness: float = 1.0) -> World:
    """Normal scores; the draft's are the target's with noise added."""
    chance = np.random.default_rng(seed)
    p = chance.normal(size=(size, size)) * 1.5
    return World(p, p + chance.normal(size=(size, size)) * closeness)


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def draw(weights: np.ndarray, u: float) -> int:
    """Inverse transform in the order of ids."""
    total = np.cumsum(weights)
    return int(min(np.searchsorted(total, u * total[-1], side="right"), len(weights) - 1))


def auditor(world: World, draft: bool = True, steps: bool = False, tolerance: float = 0.0) -> Auditor:
    return Auditor(TableModel(lambda context: np.full(world.size, 1 / world.size)), draft, steps, tolerance)


def feed(book: Auditor, world: World, transcript: Transcript, draft: bool = True) -> None:
    """Audit one transcript with the world's own rows."""
    before = np.array([transcript.prompt[-1], *transcript.output[:-1]])
    q = law(world.q[before], transcript.sampling, contexts(transcript)) if draft else None
    book.add(Read(transcript, world.p[before], q))


def contexts(transcript: Transcript):
    from draftproof.audit.rows import _contexts

    return _contexts(transcript)
