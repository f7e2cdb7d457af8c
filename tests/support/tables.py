"""Random table models over rationals: a context-dependent row for every context, with zeros in it.

A wrong rule can agree with the truth on an easy table, so tests use many, and each row depends on its whole context.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
from functools import cache

import numpy as np

from draftproof.draft import Tree
from draftproof.draws import DRAWS, Draw
from draftproof.rule import Verifier
from draftproof.theory.enumerate import Context, Model


@cache
def table(seed: int, size: int, *, abstain: float = 0.0, parts: int = 0) -> Model:
    """A model of `size` tokens: rows of small Fractions, about one entry in four zero.

    A drafter may `abstain`: a share of its contexts gets the zero row, no guess. With `parts`, every probability is a
    multiple of 1 / parts, so that a grid of `parts` uniforms draws from it exactly.
    """

    @cache
    def row(context: Context) -> np.ndarray:
        chance = random.Random(f"{seed}/{size}/{context}")
        if chance.random() < abstain:
            return np.array([Fraction(0)] * size)
        if parts:
            cuts = sorted(chance.randrange(parts + 1) for _ in range(size - 1))
            weights = [b - a for a, b in zip([0, *cuts], [*cuts, parts], strict=True)]
        else:
            weights = [chance.choice((0, 1, 2, 5)) for _ in range(size)]
            weights[chance.randrange(size)] += 1
        return np.array([Fraction(w, sum(weights)) for w in weights])

    return row


def as_float(model: Model) -> Model:
    """The same model with float64 rows, for what cannot stay rational: logarithms, races, solvers."""
    return lambda context: model(context).astype(np.float64)


def correlated(seed: int, size: int, scale: float, likeness: float) -> tuple[np.ndarray, np.ndarray]:
    """Two softmax rows of normal logits: `likeness` is their correlation, `scale` their standard deviation."""
    z, e = np.random.default_rng(seed).standard_normal((2, size))
    logits = scale * np.stack([z, likeness * z + np.sqrt(1 - likeness**2) * e])
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    p, q = weights / weights.sum(axis=1, keepdims=True)
    return p, q


# Shapes and vocabularies small enough to sum over every draft, wide and deep enough for every branch of a rule.
SHAPES: tuple[tuple[Tree, int], ...] = (
    (Tree.chain(1), 3),
    (Tree.chain(2), 3),
    (Tree.chain(3), 2),
    (Tree.star(2), 3),
    (Tree.star(3), 2),
    (Tree.of(2, 1), 2),  # two paths of two
    (Tree.of(1, 2), 2),
    (Tree((-1, 0, 0, 1)), 2),  # branches of uneven length
)


def cases(verifier: Verifier) -> Iterator[tuple[Tree, int, Draw]]:
    """Every small shape the verifier accepts, with every way of drawing it declares."""
    for tree, size in SHAPES:
        if verifier.accepts(tree):
            for name in sorted(verifier.draws):
                yield tree, size, DRAWS[name]
