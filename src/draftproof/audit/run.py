"""Run an audit: score transcripts, bet on each token, record the worst; memory does not grow with their number."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from draftproof.audit import cells
from draftproof.audit.alternatives import AuditRows, alternatives, payoffs
from draftproof.audit.cells import Cells, Entries
from draftproof.audit.evidence import Evidence, Observed
from draftproof.audit.notes import Notes
from draftproof.audit.report import Report, report
from draftproof.audit.rows import Excerpt, ReadTranscript, batches, joined, read, rows, stacked
from draftproof.audit.transcripts import InputError, Transcript, checked
from draftproof.errors import DraftproofError
from draftproof.law import Array, at
from draftproof.models import check_vocabularies
from draftproof.models.base import Model, facts
from draftproof.models.drafters.fallback import Fallback
from draftproof.models.drafters.recall import Recall
from draftproof.sampling import Sampling, law

ROOM = {"cpu": (2**25, 2**19), "cuda": (2**28, 2**26)}  # entries of logits in a batch, of each array of laws
PROMPTS = 10_000  # whose last sample is stored, to compare the next one with


OutputIds = tuple[int, ...]


class Twin(NamedTuple):
    """The last sample of a prompt: its output, and the quarter of each token."""

    output: OutputIds
    quarter: np.ndarray


def check(alpha: float, tolerance: float) -> None:
    """Raise if a setting of the audit is wrong."""
    if not 0 < alpha < 1:
        raise DraftproofError(f"alpha must be between 0 and 1, not {alpha!r}")
    if not 0 <= tolerance < 0.5:
        raise DraftproofError(f"tolerance must be at least 0 and below 0.5, in total variation, not {tolerance!r}")


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
    >>> coin = TableModel(lambda context: [0.5, 0.5])
    >>> biased = [Transcript((0,), (1,) * 400, Sampling())]
    >>> audit(biased, coin, tolerance=0.0).exact
    False
    """
    check(alpha, tolerance)
    if draft is not None:
        check_vocabularies(target, draft)
        parts = draft.parts if isinstance(draft, Fallback) else [draft]
        if any(isinstance(part, Recall) for part in parts):
            raise DraftproofError("the guesses of a cache depend on all text it had seen: audit without a draft")
    remaining = iter(transcripts)
    first = next(remaining, None)
    if first is None:
        raise InputError("there are no transcripts: collect some first")
    auditor = Auditor(target, draft is not None, first.accepted is not None, tolerance)
    valid = (checked(transcript, target) for transcript in chain([first], remaining))
    room, _ = _room(target)
    for batch in batches(valid, target.vocabulary, room):
        auditor.add(list(read(batch, target, draft)))
    return report(auditor.evidence, auditor.notes, alpha, target.tokenizer)


class Auditor:
    """The state of an audit; takes transcripts in order."""

    def __init__(self, target: Model, draft: bool, steps: bool, tolerance: float) -> None:
        self.ends = target.end_tokens
        self.alternatives = alternatives(draft)
        self.tables = cells.tables(target.vocabulary, draft, steps)
        self.evidence = Evidence(self.alternatives, self.tables, tolerance)
        self.notes = Notes(target.name, target.vocabulary, tolerance)
        self.tolerance = tolerance
        self._rows = max(1, _room(target)[1] // target.vocabulary)
        self._twins: OrderedDict[tuple[int, ...], Twin] = OrderedDict()

    def add(self, reads: Sequence[ReadTranscript]) -> np.ndarray:
        """Bet on the tokens of some transcripts in order; returns what each added to the log evidence [n]."""
        observed, summary = self.observe(reads)
        gains = self.evidence.add(observed)
        starts = np.cumsum([0, *(len(text.logits) for text in reads)])
        for text, start, stop in zip(reads, starts, starts[1:], strict=False):
            part = slice(start, stop)
            self.notes.take(
                text.transcript, summary.chance[part], summary.void[part], summary.surprise[part], gains[part]
            )
        return gains

    def observe(self, reads: Sequence[ReadTranscript]) -> tuple[Observed, RowSummary]:
        """Compute what the bets depend on for these transcripts; nothing is bet yet."""
        reads = self._with_previous(reads)
        excerpts = [
            (text, range(start, min(start + self._rows, len(text.logits))))
            for text in reads
            for start in range(0, len(text.logits), self._rows)
        ]
        summaries = [self._summarise(group) for group in _grouped(excerpts, self._rows)]
        summary = RowSummary(*(_join(parts) for parts in zip(*summaries, strict=True)))
        keys, start = [], 0
        for text in reads:
            stop = start + len(text.logits)
            text_cells = {name: Cells(*(array[start:stop] for array in cut)) for name, cut in summary.cells.items()}
            keys.append(_keys(text.transcript, text_cells, self._twins.get(text.transcript.prompt)))
            self._remember(text.transcript, text_cells["quarter"].cell)
            start = stop
        entries = [Entries(np.concatenate([k[t.key] for k in keys]), *summary.cells[t.cells]) for t in self.tables]
        return Observed(summary.ratio, summary.spread, entries, summary.void), summary

    def _with_previous(self, reads: Sequence[ReadTranscript]) -> list[ReadTranscript]:
        """Pair each transcript with the output of the previous sample of the same prompt."""
        last: dict[OutputIds, OutputIds] = {}
        paired = []
        for text in reads:
            prompt = text.transcript.prompt
            twin = self._twins.get(prompt)
            paired.append(text._replace(previous=last.get(prompt, twin.output if twin is not None else ())))
            last[prompt] = text.transcript.output
        return paired

    def _remember(self, transcript: Transcript, quarter: np.ndarray) -> None:
        self._twins[transcript.prompt] = Twin(transcript.output, quarter)
        self._twins.move_to_end(transcript.prompt)
        if len(self._twins) > PROMPTS:
            self._twins.popitem(last=False)

    def _summarise(self, group: Sequence[Excerpt]) -> RowSummary:
        """Reduce rows over the whole vocabulary to the few numbers that the bets need."""
        by_settings = [list(some) for _, some in groupby(group, key=lambda piece: piece[0].transcript.sampling)]
        parts = [rows(some, self.tolerance) for some in by_settings]
        combined, void = stacked([part for part, _ in parts]), np.concatenate([cells.numbers(v) for _, v in parts])
        pays = payoffs(self.alternatives, combined, self.tolerance)
        before: list[int] = []
        twin: list[int] = []
        for text, part in group:
            before += (text.transcript.prompt[-1], *text.transcript.output)[part.start : part.stop]
            twin += [text.previous[t] if t < len(text.previous) else -1 for t in part]
        splits = {
            "rank": cells.by_rank(combined),
            "quarter": cells.by_quarter(combined),
            "seen": cells.by_history(combined, _beside(before, combined)),
            "token": cells.by_token(combined, self.ends),
            "twin": cells.by_twin(combined, _beside(twin, combined)),
        }
        if combined.q is not None:
            splits["draft"] = cells.by_draft(combined)
        surprises = [surprise(some, p) for some, (p, _) in zip(by_settings, parts, strict=True)]
        return RowSummary(
            np.stack([cells.numbers(pay.ratio) for pay in pays], axis=1),
            np.stack([cells.numbers(pay.spread) for pay in pays], axis=1),
            splits,
            void,
            np.concatenate([cells.numbers(at(part.p, part.y)).astype(np.float64) for part, _ in parts]),
            np.concatenate(surprises),
        )


def _grouped(excerpts: Sequence[Excerpt], limit: int) -> Iterator[list[Excerpt]]:
    """Group consecutive excerpts into at most `limit` rows."""
    group: list[Excerpt] = []
    for excerpt in excerpts:
        if group and sum(len(part) for _, part in group) + len(excerpt[1]) > limit:
            yield group
            group = []
        group.append(excerpt)
    yield group


class RowSummary(NamedTuple):
    """What the bets and notes need of some tokens' rows."""

    ratio: np.ndarray  # [n, A]
    spread: np.ndarray  # [n, A]
    cells: dict[str, Cells]
    void: np.ndarray  # [n]
    chance: np.ndarray  # [n] p(y)
    surprise: np.ndarray  # [n, 2] -log of the model's probability without settings: of the token, and expected under p


def surprise(excerpts: Sequence[Excerpt], audit_rows: AuditRows) -> np.ndarray:
    """Surprise [n, 2] under the model without any settings: of each token, and expected under p."""
    logits = joined([text.logits[part.start : part.stop] for text, part in excerpts])
    xp = array_namespace(logits)
    plain = law(logits, Sampling())
    logs = xp.log(xp.where(plain > 0, plain, plain * 0 + 1e-45))
    expected = -xp.sum(audit_rows.p * xp.astype(logs, xp.float64), axis=-1)
    return np.stack([-cells.numbers(at(logs, audit_rows.y)).astype(np.float64), cells.numbers(expected)], axis=1)


def _keys(transcript: Transcript, splits: dict[str, Cells], twin: Twin | None) -> dict[str, np.ndarray]:
    """The keys of each token, all known before it: cells of the tokens before, position in the step, the twin."""
    n = len(transcript.output)
    keys = {"none": np.zeros(n, dtype=int), "step": _steps(transcript)}
    for name in ("rank", "quarter", "token", "draft"):
        if name in splits:
            cell, mass = splits[name]
            size = mass.shape[1]
            cell_or_none = np.where(mass.sum(axis=1) > 0, cell, size)
            last = np.concatenate([[size], cell_or_none[:-1]])
            second_last = np.concatenate([[size], last[:-1]])
            keys[name], keys[f"{name}s"] = last, second_last * (size + 1) + last
            keys[f"step {name}"] = keys["step"] * (size + 1) + last
    twin_quarter = np.full(n, cells.QUARTERS)
    agree = np.zeros(n, dtype=int)
    if twin is not None:
        both = min(n, len(twin.output))
        twin_quarter[:both] = twin.quarter[:both]
        same = np.array(transcript.output[:both]) == np.array(twin.output[:both])
        agree[:both] = np.where(np.concatenate([[True], np.cumprod(same)[:-1] > 0]), 1, 2)
    return {**keys, "twin": agree, "twin quarter": twin_quarter}


def _steps(transcript: Transcript) -> np.ndarray:
    """Number of accepted guesses just before each token [n], up to three; the last key where it is unknown."""
    n = len(transcript.output)
    if transcript.accepted is None:
        return np.full(n, cells.STEP - 1)
    positions, run = np.zeros(n, dtype=int), 0
    for t, accepted in enumerate(transcript.accepted):
        positions[t] = min(run, cells.STEP - 2)
        run = run + 1 if accepted else 0
    return positions


def _join(parts: Sequence[Any]) -> Any:
    """Concatenate the arrays, or dicts of cells, of consecutive parts."""
    if isinstance(parts[0], dict):
        return {name: Cells(*map(np.concatenate, zip(*(p[name] for p in parts), strict=True))) for name in parts[0]}
    return np.concatenate(parts)


def _beside(tokens: Sequence[int], audit_rows: AuditRows) -> Array:
    return array_namespace(audit_rows.p).asarray(np.array(tokens), device=audit_rows.p.device)


def _room(target: Model) -> tuple[int, int]:
    return ROOM[facts(target).device]
