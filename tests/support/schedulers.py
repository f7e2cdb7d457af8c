"""Schedulers over one stepper, and requests run to their end in them, on table models or on tiny networks."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np

import draftproof as dp
from draftproof.engine.choices import choose_draw
from draftproof.engine.eager.method import method_of
from draftproof.engine.eager.stepper import EagerStepper
from draftproof.engine.graph.runner import GraphKind, GraphStepper
from draftproof.engine.request import Request, SampleKey
from draftproof.engine.scheduler import Scheduler
from draftproof.engine.tuning.tuner import Fixed
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
    batch = eager(target, drafts, verifier, tree, count, capacity=0)
    texts = [ask(target, PROMPT, sampling, draft_sampling or sampling, length, (3, r)) for r in range(count)]
    for one in texts:
        batch.add([one])
    finish(batch)
    return Counter(tuple(one.tokens) for one in texts), texts


def requests(target, prompts, sampling, length=LENGTH):
    """One request a prompt, all with the same seed and controls."""
    return [ask(target, prompt, sampling, sampling, length, (11, r)) for r, prompt in enumerate(prompts)]


def finish(batch):
    """Step until every request has ended."""
    while not batch.is_finished:
        batch.step()


class Script(Fixed):
    """A tuner whose depths are given, one for each step that is launched; 2 from then on."""

    tunes = True

    def __init__(self, depths, tree=None):
        tree = tree or dp.Tree.chain(3)
        super().__init__(tree)
        self.depths = iter(depths)
        self.turn()

    def turn(self):
        """Go on to the next depth."""
        self.tree = self.example.cut(next(self.depths, 2))

    def learn(self, report):
        assert report.seconds["target"] + report.seconds["prompt"] > 0
        assert report.steps


def eager(target, drafts, rule, tree, rows, capacity):
    """A scheduler over an eager stepper; the tree may be a tuner."""
    tuner = Fixed(tree) if isinstance(tree, dp.Tree) else tree
    method = method_of(rule, choose_draw(rule, tuner.example, None), target.vocabulary)
    return over(EagerStepper(target, drafts, method, tuner, rows, capacity), rows)


def graph(target, draft, rule, tree, rows, capacity, *, compiled=False, tuner=None):
    """A scheduler over a graph stepper, which runs eagerly on a CPU."""
    kind = GraphKind(draft, rule, tree, rows, compiled)
    return over(GraphStepper(target, kind, capacity, tuner or Fixed(tree)), rows)


def over(stepper, rows):
    """A scheduler that has this stepper alone, within reach of a test."""
    scheduler = Scheduler(rows, lambda request: stepper)
    scheduler.stepper = stepper
    if isinstance(stepper.tuner, Script):
        launch = stepper.launch
        stepper.launch = lambda: (launch(), stepper.tuner.turn())[0]
    return scheduler


def ask(target, prompt, sampling, draft_sampling, length, key, *, stop=(), tuner=None):
    """A text of a model; `key` is its seed and its number."""
    return Request(
        tuple(prompt),
        sampling,
        draft_sampling,
        length,
        SampleKey(*key),
        context=target.context,
        tokenizer=target.tokenizer,
        stop=stop,
        tuner=tuner,
    )
