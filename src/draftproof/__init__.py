"""Faster text from a language model, from exactly the model's own distribution: speculative sampling you can prove.

The core (laws, verifiers, theory) imports with NumPy alone; models and engine load when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from draftproof.draft import Draft, Tree
from draftproof.errors import DraftproofError
from draftproof.rule import Verifier
from draftproof.sampling import Anneal, ByEntropy, Sampling

if TYPE_CHECKING:
    from draftproof.engine.engine import Engine
    from draftproof.engine.generate import generate, stream
    from draftproof.engine.request import Output
    from draftproof.integrations.custom_generate import custom_generate
    from draftproof.models import load

    __version__: str

__all__ = [
    "Anneal",
    "ByEntropy",
    "Draft",
    "DraftproofError",
    "Engine",
    "Output",
    "Sampling",
    "Tree",
    "Verifier",
    "custom_generate",
    "generate",
    "load",
    "stream",
]

_LAZY = {
    "Engine": "draftproof.engine.engine",
    "Output": "draftproof.engine.request",
    "custom_generate": "draftproof.integrations.custom_generate",
    "generate": "draftproof.engine.generate",
    "load": "draftproof.models",
    "stream": "draftproof.engine.generate",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name == "__version__":
        from importlib.metadata import version

        return version("draftproof")
    raise AttributeError(f"module 'draftproof' has no attribute {name!r}")
