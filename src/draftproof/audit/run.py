"""Run an audit: score transcripts, bet on each token, record the worst; memory does not grow with their number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from draftproof.audit.evidence import Evidence
from draftproof.audit.notes import Notes
from draftproof.audit.observe import Observer, room
from draftproof.audit.report import Report, report
from draftproof.audit.rows import ReadTranscript, batches, read
from draftproof.audit.transcripts import InputError, Transcript, checked
from draftproof.errors import DraftproofError
from draftproof.models import check_vocabularies
from draftproof.models.base import Model
from draftproof.models.drafters.fallback import Fallback
from draftproof.models.drafters.recall import Recall


def check(alpha: float, tolerance: float) -> None:
    """Raise if a setting of the audit is wrong."""
    if not 0 < alpha < 1:
        raise DraftproofError(f"alpha must be between 0 and 1, not {alpha!r}")
    if not 0 <= tolerance < 0.5:
        raise DraftproofError(f"tolerance must be at least 0 and below 0.5, in total variation, not {tolerance!r}")


def check_draft(draft: Model | None, target: Model) -> None:
    """Raise if the draft's law cannot be computed from a transcript."""
    if draft is not None:
        check_vocabularies(target, draft)
        parts = draft.parts if isinstance(draft, Fallback) else [draft]
        if any(isinstance(part, Recall) for part in parts):
            raise DraftproofError("the draft tokens of a cache depend on all text it had seen: audit without a draft")


def audit(
    transcripts: Iterable[Transcript],
    target: Model,
    *,
    draft: Model | None = None,
    alpha: float = 0.01,
    tolerance: float = 1e-4,
) -> Report:
    """Test whether outputs follow the target's law under their settings, and return a report.

    transcripts     in any order that does not depend on the outputs; samples of one prompt are compared in this order
    draft           the draft model or n-gram, if there was one: faults that involve it are then detected much sooner
    alpha           an exact engine raises an alarm with at most this probability, however long the audit
    tolerance       total variation between engine and audit, at each token, that is attributed to rounding

    >>> from draftproof.models.table import TableModel
    >>> from draftproof.sampling import Sampling
    >>> coin = TableModel(lambda context: [0.5, 0.5])
    >>> biased = [Transcript((0,), (1,) * 400, Sampling())]
    >>> audit(biased, coin, tolerance=0.0).exact
    False
    """
    check(alpha, tolerance)
    check_draft(draft, target)
    remaining = iter(transcripts)
    first = next(remaining, None)
    if first is None:
        raise InputError("there are no transcripts: collect some first")
    auditor = Auditor(target, draft is not None, first.accepted is not None, tolerance)
    valid = (checked(transcript, target) for transcript in chain([first], remaining))
    for batch in batches(valid, target.vocabulary, room(target)[0]):
        auditor.add(list(read(batch, target, draft)))
    return auditor.report(alpha, target.tokenizer)


class Auditor(Observer):
    """The state of an audit; takes transcripts in order."""

    def __init__(self, target: Model, draft: bool, steps: bool, tolerance: float) -> None:
        super().__init__(target, draft, steps, tolerance)
        self.evidence = Evidence(self.alternatives, self.tables, tolerance)
        self.notes = Notes(target.name, target.vocabulary, tolerance)

    def add(self, reads: Sequence[ReadTranscript]) -> np.ndarray:
        """Bet on the tokens of some transcripts in order; returns what each added to the log evidence [n]."""
        observed, summary = self.observe([[text] for text in reads])
        gains = self.evidence.add(observed)
        starts = np.cumsum([0, *(len(text.logits) for text in reads)])
        for text, start, stop in zip(reads, starts, starts[1:], strict=False):
            part = slice(start, stop)
            self.notes.take(text.transcript, summary.chance[part], summary.void[part], summary.surprise[part])
            self.notes.rank(text.transcript, summary.chance[part], gains[part])
        return gains

    def report(self, alpha: float, tokenizer: Any = None) -> Report:
        """The report on what was added so far."""
        return report(self.evidence, self.notes, self.power, alpha, tokenizer)
