"""Typical acceptance (Medusa, Cai et al., arXiv 2401.10774): accept whatever the target finds plausible enough.

A guess is kept if p(x) > min(epsilon, delta exp(-H(p))), whatever q says, so no bound holds but the account.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.controls import entropy
from draftproof.errors import DraftproofError
from draftproof.law import Array
from draftproof.lossy import on_chain, register
from draftproof.rule import Lossy


def typical(epsilon: float, delta: float) -> Lossy:
    """The rule for a hard threshold and one that falls with the target's entropy."""
    if not (0 <= epsilon <= 1 and 0 <= delta <= 1):
        raise DraftproofError(f"epsilon and delta of typical must be in [0, 1], not {epsilon} and {delta}")

    def rule(p: Array, q: Array) -> tuple[Array, Array]:
        xp = array_namespace(p)
        soft = delta * xp.exp(-entropy(p))
        return xp.where(p > xp.where(soft < epsilon, soft, soft * 0 + epsilon), p * 0 + 1, p * 0), p

    return on_chain("typical", f"epsilon = {epsilon}, delta = {delta}", rule)


register(
    "typical",
    summary="accepts a draft token if p(x) > min(epsilon, delta exp(-H(p)))",
    paper="2401.10774",
    settings={"epsilon": 0.09, "delta": 0.3},
    make=typical,
)
