"""Gumbel list coupling (Rowan et al., arXiv 2506.05632): K races, a candidate from each, the token from the best.

Guess k is the winner of race k at speeds q. The emitted token takes each E_i as the least of its K exponentials, which
is an exponential again, so it follows p. All K races count even where fewer guesses are drafted: the text must not
depend on the tree.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.couple import register
from draftproof.couple.gumbel import first, times
from draftproof.law import Array
from draftproof.rule import Coupling


def draft(q: Array, noise: Array, siblings: int) -> Array:
    """[B, K]: sibling k wins race k at speeds q; equal siblings are possible. Where there are no more races, -1."""
    guesses = [first(times(q, noise[:, k])) for k in range(min(siblings, noise.shape[1]))]
    none = guesses[0] * 0 - 1
    return array_namespace(q).stack(guesses + [none] * (siblings - len(guesses)), axis=1)


def emit(p: Array, noise: Array) -> Array:
    """[B]: the winner at speeds p when a token arrives with the earliest of its K exponentials."""
    return first(times(p, array_namespace(noise).min(noise, axis=1)))


def of(streams: int) -> Coupling:
    """The list coupling with K races at each position. A different K gives a different text."""
    return Coupling(
        "gumbel_list",
        summary=f"{streams} races, a candidate from each: same seed, same text, several candidates a position",
        paper="2506.05632",
        streams=streams,
        draft=draft,
        emit=emit,
    )


register(of(4))
