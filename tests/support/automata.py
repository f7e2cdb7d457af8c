"""Small grammars over token ids, and the law that a model has under one: by the definition, one token after another."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import draftproof as dp
from draftproof.grammar import State
from draftproof.models import grammars
from draftproof.models.table import TableModel
from draftproof.theory.enumerate import Context, Model


def automaton(seed: int, size: int, states: int = 4) -> dp.Grammar:
    """Every state leads on, about half of them by one token only."""
    chance = random.Random(seed)
    edges = []
    for _ in range(states):
        some = chance.sample(range(size), 1 if chance.random() < 0.5 else chance.randint(2, size))
        edges.append({token: chance.randrange(states) for token in some})
    return dp.Grammar.tokens(edges, [])


def state(grammar: dp.Grammar, size: int, text: Context, ends: tuple[int, ...] = ()) -> State | None:
    """Where a text is in a grammar; None where it has left it."""
    here: State | None = grammars.start(grammar, TableModel(lambda context: np.ones(size) / size), ends)
    for token in text:
        here = None if here is None else here.after(token)
    return here


def restricted(row: Any, here: State | None) -> Any:
    """A law on the tokens that may follow; evenly on them where it has none of their mass."""
    if here is None or here.is_over:
        return row
    some = row * here.allowed.astype(int)
    some = some if some.sum() else (row * 0 + 1) * here.allowed.astype(int)
    return some / some.sum()


def under(model: Model, grammar: dp.Grammar, size: int, ends: tuple[int, ...] = ()) -> Model:
    """The target's law under a grammar."""
    return lambda context: restricted(model(context), state(grammar, size, context, ends))


def guessing(model: Model, grammar: dp.Grammar, size: int) -> Model:
    """The drafter's law under a grammar: what is sure has all the mass, what is forbidden has none."""

    def row(context: Context) -> Any:
        here, q = state(grammar, size, context), model(context)
        if here is None:
            return q * 0
        if here.expected >= 0:
            return q * 0 + np.eye(size, dtype=int)[here.expected]
        some = q * here.allowed.astype(int)
        return some / some.sum() if some.sum() else some

    return row
