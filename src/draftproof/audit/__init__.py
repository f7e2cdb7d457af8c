"""Test from transcripts alone whether an engine samples exactly from its model, by betting against the model's law."""

from __future__ import annotations

from draftproof.audit.paired import compare
from draftproof.audit.report import Report
from draftproof.audit.run import audit
from draftproof.audit.transcripts import InputError, Transcript, read, write

__all__ = ["InputError", "Report", "Transcript", "audit", "compare", "read", "write"]
