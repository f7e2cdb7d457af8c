"""Lenience (Leviathan et al., arXiv 2211.17192, A.5): accept as if the draft had proposed the token less often.

With a factor l in (0, 1] a guess is kept with min(1, p / (l q)). No token becomes more than 1 / l times as likely as it
should be, and the output is never further from p than q is.
"""

from __future__ import annotations

from draftproof.errors import DraftproofError
from draftproof.law import Array, capped_ratio, residual
from draftproof.lossy import on_chain, register
from draftproof.rule import Lossy


def lenience(factor: float) -> Lossy:
    """The rule for one factor; 1 is exact."""
    if not 0 < factor <= 1:
        raise DraftproofError(f"the factor of lenience must be in (0, 1], 1 = exact, not {factor}")

    def rule(p: Array, q: Array) -> tuple[Array, Array]:
        return capped_ratio(p, factor * q), residual(p, factor * q)

    return on_chain("lenience", f"factor = {factor}", rule)


register(
    "lenience",
    summary="accepts a draft token with min(1, p / (factor q))",
    paper="2211.17192",
    settings={"factor": 0.8},
    make=lenience,
)
