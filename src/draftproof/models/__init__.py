"""Models and drafters, loaded by name."""

from draftproof.models.devices import precision
from draftproof.models.registry import DRAFTERS, NAMES, check_vocabularies, drafter, load, quiet_transformers, read

__all__ = ["DRAFTERS", "NAMES", "check_vocabularies", "drafter", "load", "precision", "quiet_transformers", "read"]
