"""What is short on a CPU, in C: layers of a model, laws and draws, a head's guesses, chains verified.

It is to a CPU what draftproof.kernels is to a GPU, and like that optional: without a compiler, on another processor or
in another precision a function says None, or that it does not fit, and torch and the laws of the core do the work.
"""

from draftproof.native.layers import (
    FEW,
    LONGEST,
    MANY,
    Layer,
    Stack,
    as_gain,
    attend,
    fits,
    gate,
    lay_out,
    lay_out_floats,
    linear,
    norm,
    run,
    stack,
)
from draftproof.native.step import CHAINS, Guesser, Verdict, draws, guess, guesser, verify, whole_laws

__all__ = [
    "CHAINS",
    "FEW",
    "LONGEST",
    "MANY",
    "Guesser",
    "Layer",
    "Stack",
    "Verdict",
    "as_gain",
    "attend",
    "draws",
    "fits",
    "gate",
    "guess",
    "guesser",
    "lay_out",
    "lay_out_floats",
    "linear",
    "norm",
    "run",
    "stack",
    "verify",
    "whole_laws",
]
