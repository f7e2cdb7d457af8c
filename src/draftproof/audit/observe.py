"""From transcripts with their laws to what the bets depend on: payoffs and table entries, a few numbers a token."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from draftproof.audit import cells
from draftproof.audit.alternatives import AuditRows, alternatives
from draftproof.audit.cells import Cells, Entries
from draftproof.audit.evidence import Observed
from draftproof.audit.keys import DraftLength, Twin, keys
from draftproof.audit.payoffs import payoffs
from draftproof.audit.power import PowerSums
from draftproof.audit.rows import Excerpt, ReadTranscript, joined, rows, stacked
from draftproof.audit.transcripts import Transcript
from draftproof.law import Array, at
from draftproof.models.base import Model, facts
from draftproof.sampling import Sampling, law

ROOM = {"cpu": (2**25, 2**19), "cuda": (2**28, 2**26)}  # entries of logits in a batch, of each array of laws
PROMPTS = 10_000  # whose last sample is stored, to compare the next one with


class RowSummary(NamedTuple):
    """What the bets and notes need of some tokens' rows."""

    ratio: np.ndarray  # [n, A]
    spread: np.ndarray  # [n, A]
    cells: dict[str, Cells]
    void: np.ndarray  # [n]
    chance: np.ndarray  # [n] p(y)
    surprise: np.ndarray  # [n, 2] -log of the model's probability without settings: of the token, and expected under p


class Observer:
    """Computes what the bets depend on; remembers the last sample of each prompt, and the sums of the power."""

    def __init__(self, target: Model, draft: bool, steps: bool, tolerance: float) -> None:
        self.ends = target.end_tokens
        self.alternatives = alternatives(draft, steps)
        self.tables = cells.tables(target.vocabulary, draft, steps)
        self.power = PowerSums(self.alternatives, tolerance)
        self.tolerance = tolerance
        self._rows = max(1, room(target)[1] // target.vocabulary)
        self._lengths = DraftLength()
        self._twins: OrderedDict[tuple[int, ...], Twin] = OrderedDict()

    def observe(self, groups: Sequence[Sequence[ReadTranscript]]) -> tuple[Observed, RowSummary]:
        """Payoffs and table entries of the tokens of these texts, one after another; nothing is bet yet.

        Each text is compared with an earlier sample of its prompt. Texts of a group, which share their prompt, are
        compared with the same one, the last text of the last such group.
        """
        groups = self._with_previous(groups)
        reads = [text for group in groups for text in group]
        excerpts = [
            (text, range(start, min(start + self._rows, len(text.logits))))
            for text in reads
            for start in range(0, len(text.logits), self._rows)
        ]
        summaries = [self._summarise(group) for group in _grouped(excerpts, self._rows)]
        summary = RowSummary(*(_join(parts) for parts in zip(*summaries, strict=True)))
        named, start = [], 0
        for group in groups:
            twin = self._twins.get(group[0].transcript.prompt)
            for text in group:
                stop = start + len(text.logits)
                text_cells = {name: Cells(*(array[start:stop] for array in cut)) for name, cut in summary.cells.items()}
                named.append(keys(text.transcript, text_cells, twin))
                start = stop
            self._remember(group[-1].transcript, text_cells["quarter"].cell)
        entries = [Entries(np.concatenate([k[t.key] for k in named]), *summary.cells[t.cells]) for t in self.tables]
        return Observed(summary.ratio, summary.spread, entries, summary.void), summary

    def _with_previous(self, groups: Sequence[Sequence[ReadTranscript]]) -> list[list[ReadTranscript]]:
        """Put beside each text the output of the earlier sample, and which positions were drafted before."""
        last: dict[tuple[int, ...], tuple[int, ...]] = {}
        paired = []
        for group in groups:
            prompt = group[0].transcript.prompt
            twin = self._twins.get(prompt)
            previous = last.get(prompt, twin.output if twin is not None else ())
            known = (self._lengths.again(text.transcript) for text in group)
            paired.append([text._replace(previous=previous, again=a) for text, a in zip(group, known, strict=True)])
            last[prompt] = group[-1].transcript.output
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
        self.power.take(combined)
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
            splits["favourite"] = cells.by_favourite(splits["draft"])
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


def surprise(excerpts: Sequence[Excerpt], audit_rows: AuditRows) -> np.ndarray:
    """Surprise [n, 2] under the model without any settings: of each token, and expected under p."""
    logits = joined([text.logits[part.start : part.stop] for text, part in excerpts])
    xp = array_namespace(logits)
    plain = law(logits, Sampling())
    logs = xp.log(xp.where(plain > 0, plain, plain * 0 + 1e-45))
    expected = -xp.sum(audit_rows.p * xp.astype(logs, xp.float64), axis=-1)
    return np.stack([-cells.numbers(at(logs, audit_rows.y)).astype(np.float64), cells.numbers(expected)], axis=1)


def _join(parts: Sequence[Any]) -> Any:
    """Concatenate the arrays, or dicts of cells, of consecutive parts."""
    if isinstance(parts[0], dict):
        return {name: Cells(*map(np.concatenate, zip(*(p[name] for p in parts), strict=True))) for name in parts[0]}
    return np.concatenate(parts)


def _beside(tokens: Sequence[int], audit_rows: AuditRows) -> Array:
    return array_namespace(audit_rows.p).asarray(np.array(tokens), device=audit_rows.p.device)


def room(target: Model) -> tuple[int, int]:
    """How many entries of logits fit into a batch, and of each array of laws."""
    return ROOM[facts(target).device]
