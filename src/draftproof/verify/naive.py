"""First draft only (the baseline of SpecInfer, arXiv 2305.09781): the token rule on one; others count by luck.

The corrected token may happen to be another guess; then that one is accepted after all.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.law import Array, at, capped_ratio, residual
from draftproof.verify import register
from draftproof.verify._topdown import top_down


def rule(p: Array, laws: list[Array], tokens: Array) -> tuple[Array, Array]:
    """Keep the first guess with min(1, p/q), else emit from (p - q)+."""
    xp = array_namespace(tokens)
    ratio = capped_ratio(at(p, tokens[:, 0]), at(laws[0], tokens[:, 0]))
    first = xp.where(tokens[:, 0] < 0, ratio * 0, ratio)
    return xp.stack([first] + [first * 0] * (tokens.shape[1] - 1), axis=1), residual(p, laws[0])


stop, next = top_down(rule)

register(
    "naive",
    summary="the token rule on the first candidate; the others count only where the corrected token hits one",
    paper="2305.09781",
    draws={"iid", "distinct"},
    trees="any",
    stop=stop,
    next=next,
)
