"""Models and drafters, loaded by name."""

from draftproof.models.devices import precision
from draftproof.models.reading import NAMES, quiet_transformers, read
from draftproof.models.registry import DRAFTERS, check_drafters, check_vocabularies, drafter, load

__all__ = [
    "DRAFTERS",
    "NAMES",
    "check_drafters",
    "check_vocabularies",
    "drafter",
    "load",
    "precision",
    "quiet_transformers",
    "read",
]
