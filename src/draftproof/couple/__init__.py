"""The second contract: drafter and target share their noise, so the text is a function of target and seed alone.

A verifier corrects guesses that were drawn with noise of their own. A coupling draws both the guess and the emitted
token from the same exponentials, named by the position in the output, and a guess is kept when it is equal. A step:

    tokens = coupling.draft(q, noise[depth], width)     for each node, q [B, V] the drafter's law after it
    p      = the target's laws after every node         in one pass
    y      = coupling.emit(p[node], noise[depth])       from node 0; go on at the child that equals y, else stop

so a drafter, a draft length or a tree decides how many target calls a text takes, never a letter of it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from draftproof.errors import DraftproofError, nearest
from draftproof.law import Array


class Coupling(NamedTuple):
    """A way of drawing that guesses and emitted tokens share; noise [B, streams, V] comes from `noise.races`."""

    name: str
    summary: str
    paper: str
    streams: int  # independent races at each position; all of them shape the text, however many siblings are drafted
    draft: Callable[[Array, Array, int], Array]  # (q [B, V], noise, K siblings) -> tokens [B, K], -1 where none is left
    emit: Callable[[Array, Array], Array]  # (p [B, V], noise) -> token [B]


COUPLINGS: dict[str, Coupling] = {}


def register(coupling: Coupling) -> Coupling:
    """Enter a coupling under its name and return it."""
    COUPLINGS[coupling.name] = coupling
    return coupling


def get(name: str) -> Coupling:
    """The coupling of that name, or an error that suggests the nearest."""
    if name in COUPLINGS:
        return COUPLINGS[name]
    near = nearest(name, COUPLINGS)
    hint = f"did you mean {near!r}?" if near else f"there are {', '.join(COUPLINGS)}."
    raise DraftproofError(f"unknown coupling {name!r}: {hint}")


for _module in sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")):
    import_module(f"{__name__}.{_module}")
