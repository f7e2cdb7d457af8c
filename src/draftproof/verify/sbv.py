"""Selected block verification: at every context the best of its candidates, then block verification of that path.

Hull and peel (the coupling that meets the bound of Hu et al., arXiv 2502.18779) picks one of a context's guesses, and
block verification (2403.10444) follows with the pick's law in place of q. Accepts at least as much as the same picks
level by level.
"""

from __future__ import annotations

from typing import Any

from draftproof.law import Array
from draftproof.verify import register
from draftproof.verify._pick import beside, pick, winner
from draftproof.verify._select import selected


def choose(p: Array, q: Array, tokens: list[int]) -> tuple[list[Any], Array]:
    """The best pick of guesses drawn independently from q."""
    plan = pick(p, q, len(tokens))
    return winner(plan, tokens), beside(plan.law, like=q)


stop, next = selected(choose)

register(
    "sbv",
    summary="the best pick of the candidates at every context, then block verification of the picked path",
    paper="2403.10444, 2502.18779",
    draws={"iid"},
    trees="any",
    stop=stop,
    next=next,
    dominates={"optimal", "token"},
)
