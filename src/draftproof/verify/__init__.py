"""One file per verification algorithm; importing this folder fills the registry. A file's name is the algorithm's name.

To add one, write `verify/NAME.py` with `stop`, `next` and a call of `register`: the exactness tests, the docs row, the
benchmark row and the command-line value follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from draftproof.draft import Draft, Selection, Tree
from draftproof.law import Array
from draftproof.rule import Registry, Verifier, import_all

VERIFIERS: Registry[Verifier] = Registry("verifier", "`draftproof list` shows them all.")
get = VERIFIERS.find


def register(
    name: str,
    *,
    summary: str,
    paper: str,
    draws: Iterable[str],
    trees: str,
    stop: Callable[[Draft], Array],
    next: Callable[[Draft, Array], Array],
    dominates: Iterable[str] = (),
    select: Callable[[Draft, Array], Selection] | None = None,
    uniforms: Callable[[Tree], int] = lambda tree: 0,
    cells: Callable[[Draft], list[tuple[Array, Any]]] | None = None,
    mixes: bool = False,
) -> Verifier:
    """Enter an algorithm under its name and return it."""
    verifier = Verifier(
        name=name,
        summary=summary,
        paper=paper,
        draws=frozenset(draws),
        trees=trees,
        stop=stop,
        next=next,
        dominates=frozenset(dominates),
        select=select,
        uniforms=uniforms,
        cells=cells,
        mixes=mixes,
    )
    VERIFIERS[name] = verifier
    return verifier


import_all(__name__, __path__)
