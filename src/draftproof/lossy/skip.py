"""Skip verification where the drafter is sure of itself (early-exit heuristics): accept all from a low-entropy row.

A drafter can be sure and wrong: its entropy bounds nothing, and each token that was skipped costs TV(p, q).
"""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.controls import entropy
from draftproof.errors import DraftproofError
from draftproof.law import Array, capped_ratio, residual
from draftproof.lossy import on_chain, register
from draftproof.rule import Lossy


def skip(nats: float) -> Lossy:
    """The rule for one entropy below which nothing is verified; 0 is exact."""
    if not 0 <= nats < float("inf"):
        raise DraftproofError(f"the entropy of skip must be 0 (exact) or a positive number of nats, not {nats}")

    def rule(p: Array, q: Array) -> tuple[Array, Array]:
        return array_namespace(p).where(entropy(q) < nats, p * 0 + 1, capped_ratio(p, q)), residual(p, q)

    return on_chain("skip", f"draft entropy below {nats} nats", rule)


register(
    "skip",
    summary="accepts every draft token from a row of entropy below `nats`, verifies the others",
    paper="no bound known",
    settings={"nats": 0.3},
    make=skip,
)
