"""Recursive rejection without replacement (Jeon et al., arXiv 2402.14160; Sequoia, 2402.12374): siblings differ.

The token rule on one guess after another, in the order they were drawn; a refused guess leaves the target (p - q)+ and
is taken out of q, as it was when its successor was drawn. Any other order of the guesses is wrong.
"""

from __future__ import annotations

from draftproof.draws import without
from draftproof.law import Array
from draftproof.verify import recursive, register
from draftproof.verify._topdown import top_down


def rule(p: Array, laws: list[Array], tokens: Array) -> tuple[Array, Array]:
    """The recursive rule, in draw order, where q loses each guess before the next is drawn from it."""
    remaining = [laws[0]]
    for k in range(tokens.shape[1] - 1):
        remaining.append(without(remaining[-1], tokens[:, k]))
    return recursive.rule(p, remaining, tokens)


stop, next = top_down(rule)

register(
    "recursive_distinct",
    summary="candidates one after another by the token rule, each taken out of the draft's law before the next",
    paper="2402.14160",
    draws={"distinct"},
    trees="any",
    stop=stop,
    next=next,
)
