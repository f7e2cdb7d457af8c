"""Models by name: the default one, a folder, a file or a Hub id; and drafters for them."""

from draftproof.models.registry import (
    DRAFTERS,
    NAMES,
    check_vocabularies,
    drafter,
    load,
    precision,
    quiet_transformers,
    read,
)

__all__ = ["DRAFTERS", "NAMES", "check_vocabularies", "drafter", "load", "precision", "quiet_transformers", "read"]
