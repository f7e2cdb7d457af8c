"""Match rule (SpecInfer's naive sampling, arXiv 2305.09781): draw from the target, go on where a candidate agrees.

Exact for guesses made in any way at all, on any tree, because the emitted token is a draw from p whatever was guessed;
optimal for guesses that are not random.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.law import Array
from draftproof.verify import register
from draftproof.verify._topdown import top_down


def rule(p: Array, laws: list[Array], tokens: Array) -> tuple[Array, Array]:
    """Accept no guess for its own sake: a token of p that happens to be one goes on from there."""
    return array_namespace(p).stack([p[:, 0] * 0] * tokens.shape[1], axis=1), p


stop, next = top_down(rule, several_laws=True)

register(
    "match",
    summary="draw from the target, continue where a candidate agrees; needs no draft law, optimal for fixed draws",
    paper="2305.09781",
    draws={"iid", "distinct", "fixed", "top", "plan"},
    trees="any",
    stop=stop,
    next=next,
    mixes=True,
)
