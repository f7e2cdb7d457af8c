"""One file per verification algorithm; importing this folder fills the registry. A file's name is the algorithm's name.

To add one, write `verify/NAME.py` with `stop`, `next` and a call of `register`: the exactness tests, the docs row, the
benchmark row and the command-line value follow from it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from draftproof.draft import Draft, Selection, Tree, Verifier
from draftproof.errors import DraftproofError, nearest
from draftproof.law import Array

VERIFIERS: dict[str, Verifier] = {}


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


def get(name: str) -> Verifier:
    """The verifier of that name, or an error that suggests the nearest."""
    if name in VERIFIERS:
        return VERIFIERS[name]
    near = nearest(str(name), VERIFIERS)
    hint = f"did you mean {near!r}?" if near else "`draftproof list` shows them all."
    raise DraftproofError(f"unknown verifier {name!r}: {hint}")


for _module in sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")):
    import_module(f"{__name__}.{_module}")
