"""Mentored decoding (V. Tran-Thien 2023): the clipped ratio with the widest ceiling that a divergence budget allows."""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.errors import DraftproofError
from draftproof.law import Array
from draftproof.lossy import on_chain, register
from draftproof.lossy.clipped import clip, toward
from draftproof.rule import Lossy

HALVINGS = 30  # of the interval of 1 / ceiling; the safe end is kept, so the budget holds whatever their number


def divergence(p: Array, out: Array) -> Array:
    """KL(p || out) [...] in nats; infinite where `out` misses a token of p."""
    xp = array_namespace(p, out)
    ratio = xp.where(p > 0, p, p * 0 + 1) / xp.where((p > 0) & (out > 0), out, out * 0 + 1)
    missed = xp.any((p > 0) & (out <= 0), axis=-1)
    total = xp.sum(p * xp.log(ratio), axis=-1)
    return xp.where(missed, float("inf"), total)


def widest(p: Array, q: Array, budget: float) -> Array:
    """[..., 1]: the largest ceiling, up to the fineness of the search, that keeps KL(p || out) within the budget."""
    xp = array_namespace(p, q)
    low, high = p[..., :1] * 0, p[..., :1] * 0 + 1  # of 1 / ceiling; 1 is always within the budget
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        safe = divergence(p, clip(p, q, 1 / middle))[..., None] <= budget
        low, high = xp.where(safe, low, middle), xp.where(safe, middle, high)
    return 1 / high


def mentored(budget: float) -> Lossy:
    """The rule for one budget in nats a token."""
    if not 0 < budget < float("inf"):
        raise DraftproofError(f"the budget of mentored must be a positive number of nats, not {budget}")

    def rule(p: Array, q: Array) -> tuple[Array, Array]:
        return toward(clip(p, q, widest(p, q, budget)), q)

    return on_chain("mentored", f"budget = {budget} nats a token", rule)


register(
    "mentored",
    summary="the clipped ratio with KL(p || emitted) of at most `budget` nats a token",
    paper="mentored decoding, Tran-Thien 2023",
    settings={"budget": 0.02},
    make=mentored,
)
