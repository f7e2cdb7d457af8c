"""Clipped ratio (the optimum behind mentored decoding, V. Tran-Thien 2023): emit p clip(q / p, floor, ceiling) exactly.

Of all laws no further from p in any f-divergence it is the one whose guesses are kept most often. The ceiling is given;
the floor, at most 1, makes the law sum to one.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from draftproof.errors import DraftproofError
from draftproof.law import Array, capped_ratio, divide, residual
from draftproof.lossy import on_chain, register
from draftproof.rule import Lossy


def clip(p: Array, q: Array, ceiling: Any) -> Array:
    """[..., V]: p clip(q / p, floor, ceiling). Below a ceiling of 1 nothing sums to one.

    Solve sum max(floor p, g) = 1 with g = min(q, ceiling p). If the k tokens of least g / p are the ones lifted to the
    floor, that is a line in the floor. No such line lies above the sum, so the least of their solutions is the floor.
    """
    xp = array_namespace(p, q)
    g = xp.where(q < ceiling * p, q, ceiling * p)
    order = xp.argsort(divide(g, p), axis=-1)
    sorted_p, sorted_g = xp.take_along_axis(p, order, axis=-1), xp.take_along_axis(g, order, axis=-1)
    above = xp.flip(xp.cumulative_sum(xp.flip(sorted_g, axis=-1), axis=-1), axis=-1) - sorted_g
    floors = divide(1 - above, xp.cumulative_sum(sorted_p, axis=-1), otherwise=1)
    floor = xp.min(floors, axis=-1, keepdims=True)
    return xp.where(g > floor * p, g, floor * p)


def clipped(ceiling: float) -> Lossy:
    """The rule for one ceiling; 1 is exact."""
    if not 1 <= ceiling < float("inf"):
        raise DraftproofError(f"the ceiling of clipped must be a number of at least 1 (1 = exact), not {ceiling}")

    def rule(p: Array, q: Array) -> tuple[Array, Array]:
        return toward(clip(p, q, ceiling), q)

    return on_chain("clipped", f"ceiling = {ceiling}", rule)


def toward(out: Array, q: Array) -> tuple[Array, Array]:
    """Guesses from q made to follow the law `out`: kept with min(1, out / q), else drawn from (out - q)+."""
    return capped_ratio(out, q), residual(out, q)


register(
    "clipped",
    summary="emits p clip(q / p, floor, ceiling); no token more than `ceiling` times as likely as it should be",
    paper="mentored decoding, Tran-Thien 2023",
    settings={"ceiling": 1.25},
    make=clipped,
)
