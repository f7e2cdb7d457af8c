"""How often each rule accepts one of K guesses, in closed form where there is one, as a benchmark without noise.

Rows are [V] NumPy, of floats or Fractions. Guesses hit by luck count, as in the verifiers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from draftproof import hull
from draftproof.draft import Draft, Tree
from draftproof.draws import DRAWS, all_but_one, tops
from draftproof.law import divide, normalise, overlap, positive, residual
from draftproof.noise import Lane, uniforms
from draftproof.rule import Verifier
from draftproof.theory.bounds import after_top
from draftproof.verify import importance, kseq, optimal_binned

Row = Any
Formula = Callable[[Row, Row, int], Any]  # (p [V], q [V], K) -> probability that a guess is emitted


def match(p: Row, q: Row, siblings: int) -> Any:
    """A draw from p is one of the guesses."""
    return (p * (1 - (1 - q) ** siblings)).sum()


def naive(p: Row, q: Row, siblings: int) -> Any:
    """The first guess, or another one hit by the corrected token."""
    return overlap(p, q) + (positive(p - q) * (1 - (1 - q) ** (siblings - 1))).sum()


def recursive(p: Row, q: Row, siblings: int) -> Any:
    """Not refused by every test; a refused token is never emitted, so there are no hits."""
    refused = 1
    for _ in range(siblings):
        refused, p = refused * (1 - overlap(p, q)), residual(p, q)
    return 1 - refused


def k_seq(p: Row, q: Row, siblings: int) -> Any:
    """Passed by a test, or hit by the token that is left over, among guesses that were refused."""
    keep = np.minimum(p / kseq.rho(p[None], q[None], np.array([siblings]))[0], q)
    beta = keep.sum(keepdims=True)
    passed = 1 - (1 - beta) ** siblings
    left, refused = normalise(positive(p - keep * divide(passed, beta))), divide(q - keep, 1 - beta)
    return (passed + (1 - passed) * (left * (1 - (1 - refused) ** siblings)).sum())[0]


def optimal(p: Row, q: Row, siblings: int) -> Any:
    """The overlap of p with the law of the best pick."""
    return overlap(p, hull.plan(p, q, siblings).law)


def top_plus_one(p: Row, q: Row, siblings: int) -> Any:
    """Equal to the limit of its way of drawing."""
    return after_top(p[None], q[None], siblings, all_but_one(q[None], siblings))[0]


def nodeplan(p: Row, q: Row, siblings: int) -> Any:
    """Equal to the limit of its way of drawing."""
    return after_top(p[None], q[None], siblings, tops(q[None], siblings))[0]


ACCEPTANCE: dict[str, Formula] = {
    "match": match,
    "onehot": match,
    "naive": naive,
    "recursive": recursive,
    "kseq": k_seq,
    "traversal_iid": recursive,
    "optimal": optimal,
    "sbv": optimal,
    "top_plus_one": top_plus_one,
    "nodeplan": nodeplan,
    "sbv_plan": nodeplan,
}


def _picked(choose: Callable[[Any, list[Any], Any], tuple[Any, Any]]) -> Formula:
    """The overlap of p with the law of the pick; that law does not depend on the guesses, so any will do."""

    def formula(p: Row, q: Row, siblings: int) -> Any:
        a, _ = choose(p[None], [q[None]] * siblings, np.full((1, siblings), np.argmax(q)))
        return overlap(p, a[0])

    return formula


# A pick and the token rule, without the hits that (p - a)+ may make among the other guesses: a lower bound.
WITHOUT_HITS: dict[str, Formula] = {
    "importance": _picked(importance.choose),
    "optimal_binned": _picked(lambda p, laws, tokens: optimal_binned.choose(p, laws[0], tokens)),
}


def sampled(verifier: Verifier, draw: str, p: Row, q: Row, siblings: int, samples: int, seed: int = 0) -> float:
    """Without a formula: the mean over sampled guesses of the probability that the rule stops at one of them."""
    run = np.arange(samples)
    u = uniforms(run * 0 + seed, run * 0, run, Lane.DRAFT, siblings)
    guesses = DRAWS[draw].sample(np.broadcast_to(q, (samples, len(q))), u)
    tokens = np.concatenate([run[:, None] * 0 - 1, guesses], axis=1)
    rows = np.zeros((samples, siblings + 1, len(q)))
    rows[:, 0] = q
    draft = Draft(Tree.star(siblings), tokens, rows, np.broadcast_to(p, rows.shape))
    return float(1 - verifier.stop(draft)[:, 0].mean())
