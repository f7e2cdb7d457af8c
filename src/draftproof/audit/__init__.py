"""Is this engine exact? Evidence from its transcripts alone, by betting against the model's own law."""

from __future__ import annotations

from draftproof.audit.report import Report
from draftproof.audit.run import audit
from draftproof.audit.transcripts import InputError, Transcript, read, write

__all__ = ["InputError", "Report", "Transcript", "audit", "read", "write"]
