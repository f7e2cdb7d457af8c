"""Models and drafters, loaded by name."""

from draftproof.models.reading import NAMES, quiet_transformers, read
from draftproof.models.registry import DRAFTERS, check_vocabularies, drafter, load, precision

__all__ = ["DRAFTERS", "NAMES", "check_vocabularies", "drafter", "load", "precision", "quiet_transformers", "read"]
