"""How often each rule accepts one of K candidates, in closed form where there is one, as a benchmark without noise.

Rows are [V] NumPy, of floats or Fractions. Guesses hit by luck count, as in the verifiers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from draftproof import hull
from draftproof.draft import Draft, Tree
from draftproof.draws import DRAWS, all_but_one, tops
from draftproof.law import Array, divide, normalise, overlap, positive, residual
from draftproof.noise import Lane, uniforms
from draftproof.rule import Verifier
from draftproof.theory.bounds import CUTS, after_top
from draftproof.verify import kseq

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


class Judged(NamedTuple):
    """What a rule does with each draft of K guesses for one token."""

    accepted: Array  # [B] probability that it accepts one of them
    shortfall: Array  # [B] what it falls short of the limit: never negative, and zero for the best rules


def judged(rule: Verifier, draft: Draft, inside: Array, u: Any = None) -> Judged:
    """Acceptance given each draft [B], and how much it falls short of the limit of the draws.

    That limit is p(S) + P(D not inside S) for the set S of `bounds.Cut`, here `inside` [B, V]. Given the guesses D, let
    the rule emit a token of S with probability e; then it accepts at most e + [D not inside S], and the shortfall is
    the difference. The mean of e is p(S), so the limit less the mean shortfall is the mean acceptance too. For good
    rules it has much less noise, and it is below the limit however few drafts there are.

    u [B, ...] is for rules that select a path.
    """
    guesses, row = draft.tokens[:, 1:], np.arange(len(draft.tokens))[:, None]
    leaves = ((guesses >= 0) & ~inside[row, guesses]).any(axis=1)
    if rule.select is not None:
        draft = rule.select(draft, u).chain
    stop, tokens = rule.stop(draft), draft.tokens[:, 1:]
    emitted = stop[:, 0] * (rule.next(draft, draft.tokens[:, 0] * 0) * inside).sum(axis=1)
    outside = (stop[:, 1:] * ~inside[row, tokens]).sum(axis=1)
    return Judged(stop[:, 1:].sum(axis=1), positive(emitted + leaves - outside))  # negative by rounding alone


def sampled(verifier: Verifier, draw: str, p: Row, q: Row, siblings: int, samples: int, seed: int = 0) -> float:
    """Without a formula: the limit of the draws less the mean shortfall over sampled guesses; never above the limit."""
    run = np.arange(samples)
    u = uniforms(run * 0 + seed, run * 0, run, Lane.DRAFT, siblings)
    guesses = DRAWS[draw].sample(np.broadcast_to(q, (samples, len(q))), u)
    tokens = np.concatenate([run[:, None] * 0 - 1, guesses], axis=1)
    rows = np.zeros((samples, siblings + 1, len(q)))
    rows[:, 0] = q
    draft = Draft(Tree.star(siblings), tokens, rows, np.broadcast_to(p, rows.shape))
    cut = CUTS[draw](p[None], q[None], siblings)
    found = judged(verifier, draft, np.repeat(cut.inside, samples, axis=0))
    return float(cut.limit[0] - found.shortfall.mean())
