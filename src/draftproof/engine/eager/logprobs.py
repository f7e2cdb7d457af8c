"""Log-probabilities of the tokens that a step emits, from the laws that it was decided by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from draftproof.engine.eager.propose import Proposal
from draftproof.engine.eager.rows import numbers
from draftproof.engine.trace import TokenLogprob
from draftproof.law import Array


class Place(NamedTuple):
    """A token that was emitted: its row, and the node after which it came."""

    row: int
    node: int
    token: int


def token_logprobs(places: Sequence[Place], most: int, proposal: Proposal, p: Array) -> list[TokenLogprob]:
    """Log p and log q of each token, and the `most` likeliest tokens there; p [B, N, V] are the target's laws.

    Whole laws stay where they are: only the numbers that are reported come to the host.
    """
    rows, nodes, tokens = (list(column) for column in zip(*places, strict=True))
    own = numbers(p[rows, nodes, tokens])
    tops = _likeliest(p[rows, nodes], min(most, p.shape[-1])) if most else [()] * len(places)
    drafted = _draft_probabilities(places, proposal)
    return [
        TokenLogprob(place.token, _log(chance), top, _log(guess) if guess else None)
        for place, chance, top, guess in zip(places, own, tops, drafted, strict=True)
    ]


def chain_limits(row: int, depth: int, proposal: Proposal, p: Array) -> tuple[float, ...]:
    """Of a chain's first 1, 2, ... draft tokens: min(1, p / q), where p and q are the laws of all of them together.

    Its mean over drafts is the overlap of these laws, the sum of min(p, q): no exact rule accepts so many draft tokens
    of one path more often.
    """
    places = [Place(row, node, int(proposal.tokens[row, node + 1])) for node in range(depth)]
    if not places:
        return ()
    rows, nodes, tokens = (list(column) for column in zip(*places, strict=True))
    drafted = _draft_probabilities(places, proposal) if proposal.is_drawn else [1.0] * depth
    ratios = (
        _log(chance) - _log(guess) for chance, guess in zip(numbers(p[rows, nodes, tokens]), drafted, strict=True)
    )
    return tuple(math.exp(min(0.0, total)) for total in accumulate(ratios))


def _likeliest(laws: Array, most: int) -> list[tuple[tuple[int, float], ...]]:
    """The tokens of each law [E, V] with the largest probabilities, and their logarithms; none that cannot occur."""
    if hasattr(laws, "topk"):  # torch: a selection, which the array standard does not have
        values, tokens = laws.topk(most, dim=-1)
    else:
        tokens = np.argpartition(laws, -most, axis=-1)[:, -most:]
        values = np.take_along_axis(laws, tokens, axis=-1)
    pairs = [zip(*row, strict=True) for row in zip(numbers(tokens), numbers(values), strict=True)]
    ranked = [sorted(row, key=lambda pair: (-pair[1], pair[0])) for row in pairs]
    return [tuple((token, _log(chance)) for token, chance in row if chance) for row in ranked]


def _draft_probabilities(places: Sequence[Place], proposal: Proposal) -> list[float]:
    """q of each token in the law that draft tokens were drawn from there; 0 where it could not be drafted.

    Of several drafters it is the one that drafted the token, else the first that could have.
    """
    if proposal.is_certain:
        return [float(_child(place, proposal) is not None) for place in places]
    laws = [_chances(places, q, ids) for q, ids in zip(proposal.laws, proposal.draft_tokens, strict=False)]
    found = []
    for place, chances in zip(places, zip(*laws, strict=True) if laws else [()] * len(places), strict=True):
        child = _child(place, proposal) if len(chances) > 1 else None
        found.append(next(filter(None, chances), 0.0) if child is None else chances[child % len(chances)])
    return found


def _child(place: Place, proposal: Proposal) -> int | None:
    """Which child of the node is a draft token equal to the emitted one; None if none is."""
    children = proposal.tree.children(place.node)
    return next((k for k, node in enumerate(children) if proposal.tokens[place.row, node] == place.token), None)


def _chances(places: Sequence[Place], q: Array, ids: np.ndarray | None) -> list[float]:
    """q [B, N, V] of each token, or [B, N, D] of the tokens `ids`; 0 for any other."""
    rows, nodes, tokens = (list(column) for column in zip(*places, strict=True))
    if ids is None:
        return [float(chance) for chance in numbers(q[rows, nodes, tokens])]
    columns = np.minimum(np.searchsorted(ids, tokens), len(ids) - 1)
    chances = numbers(q[rows, nodes, columns.tolist()])
    return [chance * known for chance, known in zip(chances, (ids[columns] == tokens).tolist(), strict=True)]


def _log(chance: float) -> float:
    return math.log(chance) if chance > 0 else -math.inf
