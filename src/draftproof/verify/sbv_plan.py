"""Selected block verification of planned candidates: some fixed, the others drawn, one picked, its path verified.

The draw fixes as many top tokens of q as q suggests and draws the others from the rest. Hull and peel (bound: Hu et
al., arXiv 2502.18779) picks one of those drawn; where it was drawn too often for p, a fixed token takes its place. Then
block verification (2403.10444) of the picked path. For poor drafters and low temperatures, where independent guesses
repeat each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from draftproof import hull
from draftproof.draws import rest, tops
from draftproof.law import Array, divide
from draftproof.verify import register
from draftproof.verify._merge import apart
from draftproof.verify._pick import beside, host, pick, winner
from draftproof.verify._select import selected


def choose(p: Array, q: Array, tokens: list[int]) -> tuple[list[Any], Array]:
    """The best pick of the guesses drawn, kept or exchanged for a fixed one. At least one guess was drawn."""
    count = tops(q[None], len(tokens))
    fixed, drawn = tokens[: int(count[0])], tokens[int(count[0]) :]
    best = pick(p, rest(q[None], count, len(tokens))[1][0], len(drawn))
    target = host(p)
    _, law = hull.exchanged(target, best.law, fixed)
    kept = np.array(winner(best, drawn)) * divide(law[drawn], best.law[drawn], otherwise=1)
    taken = divide(target[fixed], target[fixed].sum(keepdims=True)) * max(1 - kept.sum(), 0)
    return [*taken, *kept], beside(law, like=q)


# Of two equal guesses each has its own fixed ones below it, so they stay apart.
stop, next = selected(choose, merge=apart)

register(
    "sbv_plan",
    summary="top tokens and drawn ones, the best pick of them at every node, then block verification of that path",
    paper="2403.10444, 2502.18779",
    draws={"plan"},
    trees="any",
    stop=stop,
    next=next,
    dominates={"nodeplan"},
)
