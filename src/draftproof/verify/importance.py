"""Importance-weighted pick (Khisti et al., arXiv 2410.18234): weigh two candidates, pick one, then the token rule.

P(keep the first | x1, x2) is a weight for each pair of tokens; a linear program sets the weights so that the law `a`
of the kept token overlaps most with p. Solved for all pairs it reaches the limit for two guesses. Here it is solved for
the pairs of a few tokens, and other pairs keep the better-ranked one. More than two guesses play a tournament. Guesses
may come from different laws. `a` is computed from the weights really used, so the solver's error costs speed alone.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from draftproof.errors import DraftproofError
from draftproof.law import Array
from draftproof.verify import register
from draftproof.verify._pick import beside, host
from draftproof.verify._topdown import judge, top_down

SOLVED = 8  # tokens whose pairs are solved for
DIGITS = 6  # the solver sees rows rounded to these, so that it decides alike in every precision


class Duel(NamedTuple):
    """How one of two guesses is kept."""

    rank: Any  # [V] place of each token; the smaller is kept, unless both are below len(keep)
    keep: Any  # [S, S] by rank: probability to keep the first guess, for the tokens solved for
    a: Any  # [V] law of the kept guess


def duel(p: Any, first: Any, second: Any, solved: int, digits: int = 15) -> Duel:
    """The duel for independent guesses from laws `first` and `second` [V], solved for the pairs of `solved` tokens."""
    p, one, two = (np.round(np.asarray(x, dtype=np.float64), digits) for x in (p, first, second))
    order = np.argsort(-np.round(p - one * two, digits), kind="stable")
    rank = np.argsort(order, kind="stable")
    solved = min(solved, len(order))
    keep = _solve(p[order], one[order], two[order], solved)
    if first.dtype == object:
        keep = np.array([Fraction(float(x)) for x in keep.reshape(-1)], dtype=object).reshape(keep.shape)
    return Duel(rank, keep, _kept_law(first[order], second[order], keep)[rank])


def _solve(p: Any, first: Any, second: Any, solved: int) -> Any:
    """[S, S] weights in rank order that maximise sum min(p, a); the variables are they and m <= min(p, a)."""
    try:
        from scipy.optimize import linprog
        from scipy.sparse import coo_array
    except ImportError as error:
        raise DraftproofError("importance needs scipy: install draftproof[theory], or use optimal") from error
    i, j = (x.reshape(-1) for x in np.indices((solved, solved)))
    mass, n = first[i] * second[j], len(i)
    keep_none = _kept_law(first, second, np.zeros((solved, solved)))[:solved]
    # m_i - (mass that weights give to i) <= mass that i has when they are all zero
    values = np.concatenate([-mass, mass, np.ones(solved)])
    rows, columns = (
        np.concatenate([i, j, np.arange(solved)]),
        np.concatenate([np.arange(n)] * 2 + [n + np.arange(solved)]),
    )
    best = linprog(
        np.concatenate([np.zeros(n), -np.ones(solved)]),
        A_ub=coo_array((values, (rows, columns)), shape=(solved, n + solved)).tocsr(),
        b_ub=keep_none,
        bounds=np.stack([np.zeros(n + solved), np.concatenate([np.ones(n), p[:solved]])], axis=1),
        method="highs",
    )
    return np.clip(best.x[:n], 0, 1).reshape(solved, solved)


def _kept_law(first: Any, second: Any, keep: Any) -> Any:
    """[V] law of the kept guess, in rank order, from the weights `keep` and the ranks beyond them."""
    solved, zero = len(keep), first[:1] * 0
    tail = [np.concatenate([np.cumsum(x[::-1])[::-1][1:], zero]) for x in (first, second)]  # mass of higher ranks
    beyond = [np.where(np.arange(len(first)) < solved, x[solved - 1], x) for x in tail]  # of those not solved for
    a = first * beyond[1] + second * beyond[0] + first * second * (np.arange(len(first)) >= solved)
    mass = first[:solved, None] * second[None, :solved]
    a[:solved] = a[:solved] + (mass * keep).sum(axis=1) + (mass * (1 - keep)).sum(axis=0)
    return a


def keeps(duel: Duel, x: int, y: int) -> Any:
    """Probability that the first guess x is kept against y; of equal tokens it is."""
    i, j, solved = int(duel.rank[x]), int(duel.rank[y]), len(duel.keep)
    if i < solved and j < solved and i != j:
        return duel.keep[i, j]
    return int(i <= j)


def duels(p: Any, laws: list[Any], solved: int, digits: int = 15) -> list[Duel]:
    """A tournament: the winner so far against the next guess, whose law is the next of `laws` [V]."""
    fights: list[Duel] = []
    for k in range(1, len(laws)):
        fights.append(duel(p, fights[-1].a if fights else laws[0], laws[k], solved, digits))
    return fights


def chances(fights: list[Duel], tokens: list[int]) -> list[Any]:
    """The probability that each guess wins the tournament."""
    chosen: list[Any] = [1]
    for k, fight in enumerate(fights, start=1):
        winners = [chance * keeps(fight, token, tokens[k]) for chance, token in zip(chosen, tokens, strict=False)]
        chosen = [*winners, sum(chosen) - sum(winners)]
    return chosen


def rule(p: Array, laws: list[Array], tokens: Array) -> tuple[Array, Array]:
    """The tournament's winner, then the token rule."""
    a, chosen = choose(p, laws, tokens)
    return judge(p, a, chosen, tokens)


def choose(p: Array, laws: list[Array], tokens: Array) -> tuple[Array, Array]:
    """The law [B, V] of the winner, and the probability [B, K] that each guess is it; zero without guesses."""
    xp = array_namespace(tokens)
    solved: dict[Any, list[Duel]] = {}  # drafts of one context share their programs
    rows, chosen = [], []
    for b, guesses in enumerate(tokens.tolist()):
        drawn = [k for k, token in enumerate(guesses) if token >= 0]
        target, own = host(p[b]), [host(laws[k][b]) for k in drawn]
        a, chance = target * 0, np.stack([target[0] * 0] * len(guesses))
        if drawn:
            key = tuple(tuple(x) if x.dtype == object else x.tobytes() for x in (target, *own))
            if key not in solved:
                solved[key] = duels(target, own, SOLVED, DIGITS)
            a = solved[key][-1].a if solved[key] else own[0]
            chance[drawn] = chances(solved[key], [guesses[k] for k in drawn])
        rows.append(beside(a, like=p))
        chosen.append(beside(chance, like=p))
    return xp.stack(rows, axis=0), xp.stack(chosen, axis=0)


stop, next = top_down(rule, several_laws=True)

register(
    "importance",
    summary="duels between candidates, weighed by a small linear program, then the token rule; allows several drafters",
    paper="2410.18234",
    draws={"iid"},
    trees="any",
    stop=stop,
    next=next,
    mixes=True,
)
