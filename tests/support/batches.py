"""Requests run to their end in one batch, on small table models or on tiny networks."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np

import draftproof as dp
from draftproof.engine.eager.batch import Batch
from draftproof.engine.eager.rows import Member
from draftproof.engine.generate import choose_draw
from draftproof.engine.request import Request
from draftproof.engine.trace import Trace
from draftproof.models.table import TableModel

PROMPT = (0,)
SAMPLES = 12_000
LENGTH = 40


def table(seed: int, size: int = 5, floor: float = 0.1) -> TableModel:
    """A float model of the whole context; no law has an entry below the floor, so a chi-square needs few samples."""

    @cache
    def rows(context):
        law = np.random.default_rng([seed, *(token + 1 for token in context)]).dirichlet(np.full(size, 0.6))
        return floor + (1 - size * floor) * law

    return TableModel(rows, name=f"table{seed}")


def samples(target, draft, verifier, tree, *, length=3, sampling=None, draft_sampling=None, count=SAMPLES):
    """Outcomes of that many requests in one batch, each in a row of its own."""
    sampling = sampling or dp.Sampling()
    drafts = draft if isinstance(draft, list) else [draft]
    batch = Batch(target, drafts, verifier, tree, choose_draw(verifier, tree, None), count, capacity=0)
    texts = [
        Request(target, PROMPT, sampling, draft_sampling or sampling, length, (), Member(seed=3, request=r), Trace())
        for r in range(count)
    ]
    for request in texts:
        batch.add([request])
    finish(batch)
    return Counter(tuple(request.tokens) for request in texts), texts


def requests(target, prompts, sampling, length=LENGTH):
    """One request a prompt, all with the same seed and controls."""
    return [
        Request(target, tuple(prompt), sampling, sampling, length, (), Member(11, r), Trace())
        for r, prompt in enumerate(prompts)
    ]


def finish(batch):
    """Step until every request has ended."""
    while not batch.is_finished:
        batch.step()


class Script:
    """Lengths that are given, one after another; 2 from then on. Stands for a Pace here and for a Tree there."""

    size = 4

    def __init__(self, lengths):
        self.lengths = iter(lengths)

    @property
    def length(self):
        return next(self.lengths, 2)

    def cut(self, depth):
        return dp.Tree.chain(self.length)

    def learn(self, length, accepted, seconds):
        assert seconds["target"] > 0
        assert accepted
