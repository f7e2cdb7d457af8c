"""Faster text from a language model, from exactly the model's own distribution: speculative sampling you can prove.

Everything loads when it is first used. The core (laws, verifiers, theory) needs NumPy alone.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers take it; not from typing, because nothing is imported before it is used
if TYPE_CHECKING:
    from typing import Any

    from draftproof.draft import Draft, Tree
    from draftproof.engine.async_engine import AsyncEngine, agenerate, astream
    from draftproof.engine.engine import Engine
    from draftproof.engine.generate import generate, stream
    from draftproof.engine.request import Output
    from draftproof.engine.trace import TokenLogprob
    from draftproof.errors import DraftproofError
    from draftproof.grammar import Grammar
    from draftproof.integrations.custom_generate import custom_generate
    from draftproof.models import load
    from draftproof.rule import Verifier
    from draftproof.sampling import Anneal, ByEntropy, Sampling

    __version__: str

__all__ = [
    "Anneal",
    "AsyncEngine",
    "ByEntropy",
    "Draft",
    "DraftproofError",
    "Engine",
    "Grammar",
    "Output",
    "Sampling",
    "TokenLogprob",
    "Tree",
    "Verifier",
    "agenerate",
    "astream",
    "custom_generate",
    "generate",
    "load",
    "stream",
]

_LAZY = {
    "Anneal": "draftproof.sampling",
    "AsyncEngine": "draftproof.engine.async_engine",
    "ByEntropy": "draftproof.sampling",
    "Draft": "draftproof.draft",
    "DraftproofError": "draftproof.errors",
    "Engine": "draftproof.engine.engine",
    "Grammar": "draftproof.grammar",
    "Output": "draftproof.engine.request",
    "Sampling": "draftproof.sampling",
    "TokenLogprob": "draftproof.engine.trace",
    "Tree": "draftproof.draft",
    "Verifier": "draftproof.rule",
    "agenerate": "draftproof.engine.async_engine",
    "astream": "draftproof.engine.async_engine",
    "custom_generate": "draftproof.integrations.custom_generate",
    "generate": "draftproof.engine.generate",
    "load": "draftproof.models",
    "stream": "draftproof.engine.generate",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("draftproof")
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'draftproof' has no attribute {name!r}")
