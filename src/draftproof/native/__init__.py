"""The short operations of a step on a CPU, in C: layers of a model, softmax and sampling, a head's draft, verification.

It is to a CPU what draftproof.kernels is to a GPU, and like that optional: without a compiler, on another processor or
in another precision a function returns None or does not fit, and torch and the core do the work.
"""

from draftproof.native.build import MaskStruct, Sizes
from draftproof.native.layers import (
    FEW,
    Attention,
    NativeLinear,
    Stack,
    addresses,
    as_gain,
    attend,
    causal,
    column_maxima,
    fits,
    gate,
    lay_out_float32,
    lay_out_int8,
    linear,
    mask,
    norm,
    run_stack,
    stack,
)
from draftproof.native.network import NativeNetwork, forward, lay_out_network
from draftproof.native.step import (
    CHAINS,
    ChainOutcome,
    NativeHead,
    catch_up,
    draws,
    follow,
    guess,
    lay_out_head,
    uniforms,
    verify,
    whole_laws,
)

__all__ = [
    "CHAINS",
    "FEW",
    "Attention",
    "ChainOutcome",
    "MaskStruct",
    "NativeHead",
    "NativeLinear",
    "NativeNetwork",
    "Sizes",
    "Stack",
    "addresses",
    "as_gain",
    "attend",
    "catch_up",
    "causal",
    "column_maxima",
    "draws",
    "fits",
    "follow",
    "forward",
    "gate",
    "guess",
    "lay_out_float32",
    "lay_out_head",
    "lay_out_int8",
    "lay_out_network",
    "linear",
    "mask",
    "norm",
    "run_stack",
    "stack",
    "uniforms",
    "verify",
    "whole_laws",
]
