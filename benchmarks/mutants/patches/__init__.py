"""Faults written by hand: in C, which has no operators here, and those that are no slip of one operator."""

from benchmarks.mutants.patches.kernels import KERNELS
from benchmarks.mutants.patches.layers import ATTENTION, LAYERS
from benchmarks.mutants.patches.reported import AUDIT, DRAWS, EAGER, HULL, MODELS, NATIVE, RULES
from benchmarks.mutants.patches.step import STEP

PATCHES = {
    "draws": DRAWS,
    "rules": RULES,
    "hull": HULL,
    "eager": EAGER,
    "models": MODELS,
    "native": (*NATIVE, *STEP, *ATTENTION, *LAYERS),
    "kernels": KERNELS,
    "audit": AUDIT,
}
