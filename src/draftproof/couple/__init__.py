"""The second contract: drafter and target share their noise, so the text is a function of target and seed alone.

A verifier corrects guesses that were drawn with noise of their own. A coupling draws both the guess and the emitted
token from the same exponentials, named by the position in the output, and a guess is kept when it is equal. A step:

    tokens = coupling.draft(q, noise[depth], width)     for each node, q [B, V] the drafter's law after it
    p      = the target's laws after every node         in one pass
    y      = coupling.emit(p[node], noise[depth])       from node 0; go on at the child that equals y, else stop

so the drafter, the draft length and the tree change how many target calls a text takes, but not a letter of it.
"""

from __future__ import annotations

from draftproof.rule import Coupling, Registry, import_all

COUPLINGS: Registry[Coupling] = Registry("coupling")
get = COUPLINGS.find


def register(coupling: Coupling) -> Coupling:
    """Enter a coupling under its name and return it."""
    COUPLINGS[coupling.name] = coupling
    return coupling


import_all(__name__, __path__)
