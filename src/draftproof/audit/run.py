"""The audit itself: read, bet, remember the worst; memory does not grow with the transcripts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from draftproof.audit import cells
from draftproof.audit.alternatives import Rows, alternatives, payoffs
from draftproof.audit.cells import Cells, Entries
from draftproof.audit.evidence import Evidence, Observed
from draftproof.audit.notes import Notes
from draftproof.audit.report import Report, report
from draftproof.audit.rows import Piece, Read, batches, joined, read, rows, stacked
from draftproof.audit.transcripts import InputError, Transcript, checked
from draftproof.errors import DraftproofError
from draftproof.law import Array, at
from draftproof.models import check_vocabularies
from draftproof.models.base import Model, facts
from draftproof.models.drafters.fallback import Mixed
from draftproof.models.drafters.recall import Recall
from draftproof.sampling import Sampling, law

ROOM = {"cpu": (2**25, 2**19), "cuda": (2**28, 2**26)}  # entries of logits in a batch, of each array of laws
PROMPTS = 10_000  # for which the last sample is kept, to compare the next one with


Output = tuple[int, ...]


class Twin(NamedTuple):
    """The last sample of a prompt."""

    output: Output
    quarter: np.ndarray


def audit(
    transcripts: Iterable[Transcript],
    target: Model,
    *,
    draft: Model | None = None,
    alpha: float = 0.01,
    tolerance: float = 1e-4,
) -> Report:
    """Evidence that the outputs do not follow the target's law under their settings.

    transcripts     in any order that does not depend on the outputs; samples of one prompt are compared in this order
    draft           the draft model or n-gram, if there was one: faults that involve it are then seen much sooner
    alpha           an exact engine is called inexact with at most this probability, however often one looks
    tolerance       total variation between engine and audit, at each token, that is put down to rounding

    >>> from draftproof.models.table import TableModel
    >>> coin = TableModel(lambda context: [0.5, 0.5])
    >>> biased = [Transcript((0,), (1,) * 400, Sampling())]
    >>> audit(biased, coin, tolerance=0.0).exact
    False
    """
    if not 0 < alpha < 1:
        raise DraftproofError(f"alpha must be between 0 and 1, not {alpha!r}")
    if not 0 <= tolerance < 0.5:
        raise DraftproofError(f"tolerance must be at least 0 and below 0.5, in total variation, not {tolerance!r}")
    if draft is not None:
        check_vocabularies(target, draft)
        parts = draft.parts if isinstance(draft, Mixed) else [draft]
        if any(isinstance(part, Recall) for part in parts):
            raise DraftproofError("what a cache guessed depends on all that it had seen: audit without a draft")
    coming = iter(transcripts)
    first = next(coming, None)
    if first is None:
        raise InputError("there are no transcripts: collect some first")
    auditor = Auditor(target, draft is not None, first.accepted is not None, tolerance)
    sound = (checked(transcript, target) for transcript in chain([first], coming))
    room, _ = _room(target)
    for batch in batches(sound, target.vocabulary, room):
        auditor.add(list(read(batch, target, draft)))
    return report(auditor.evidence, auditor.notes, alpha, target.tokenizer)


class Auditor:
    """Takes transcripts one by one, in order."""

    def __init__(self, target: Model, draft: bool, steps: bool, tolerance: float) -> None:
        self.ends = target.end_tokens
        self.alternatives = alternatives(draft)
        self.tables = cells.tables(target.vocabulary, draft, steps)
        self.evidence = Evidence(self.alternatives, self.tables, tolerance)
        self.notes = Notes(target.name, target.vocabulary, tolerance)
        self.tolerance = tolerance
        self._rows = max(1, _room(target)[1] // target.vocabulary)
        self._twins: OrderedDict[tuple[int, ...], Twin] = OrderedDict()

    def add(self, reads: Sequence[Read]) -> np.ndarray:
        """Bet on the tokens of some transcripts, one after another; what each added to the log evidence [n]."""
        observed, look = self.observe(reads)
        gains = self.evidence.add(observed)
        places = np.cumsum([0, *(len(one.logits) for one in reads)])
        for one, start, stop in zip(reads, places, places[1:], strict=False):
            part = slice(start, stop)
            self.notes.take(one.transcript, look.chance[part], look.void[part], look.surprise[part], gains[part])
        return gains

    def observe(self, reads: Sequence[Read]) -> tuple[Observed, Look]:
        """What the bets see of these transcripts; nothing is bet yet."""
        reads = self._beside_others(reads)
        pieces = [
            (one, range(start, min(start + self._rows, len(one.logits))))
            for one in reads
            for start in range(0, len(one.logits), self._rows)
        ]
        looks = [self._look(group) for group in _grouped(pieces, self._rows)]
        look = Look(*(_join(parts) for parts in zip(*looks, strict=True)))
        keys, start = [], 0
        for one in reads:
            stop = start + len(one.logits)
            found = {name: Cells(*(array[start:stop] for array in cut)) for name, cut in look.cells.items()}
            keys.append(_keys(one.transcript, found, self._twins.get(one.transcript.prompt)))
            self._remember(one.transcript, found["quarter"].cell)
            start = stop
        entries = [Entries(np.concatenate([k[t.key] for k in keys]), *look.cells[t.cells]) for t in self.tables]
        return Observed(look.ratio, look.spread, entries, look.void), look

    def _beside_others(self, reads: Sequence[Read]) -> list[Read]:
        """Each transcript with the output of the sample before it that had the same prompt."""
        last: dict[Output, Output] = {}
        found = []
        for one in reads:
            prompt = one.transcript.prompt
            twin = self._twins.get(prompt)
            found.append(one._replace(other=last.get(prompt, twin.output if twin is not None else ())))
            last[prompt] = one.transcript.output
        return found

    def _remember(self, transcript: Transcript, quarter: np.ndarray) -> None:
        self._twins[transcript.prompt] = Twin(transcript.output, quarter)
        self._twins.move_to_end(transcript.prompt)
        if len(self._twins) > PROMPTS:
            self._twins.popitem(last=False)

    def _look(self, group: Sequence[Piece]) -> Look:
        """Some rows, dense over the vocabulary, made the few numbers that the bets need."""
        alike = [list(some) for _, some in groupby(group, key=lambda piece: piece[0].transcript.sampling)]
        parts = [rows(some, self.tolerance) for some in alike]
        made, void = stacked([part for part, _ in parts]), np.concatenate([cells.numbers(v) for _, v in parts])
        pays = payoffs(self.alternatives, made, self.tolerance)
        before: list[int] = []
        twin: list[int] = []
        for one, part in group:
            before += (one.transcript.prompt[-1], *one.transcript.output)[part.start : part.stop]
            twin += [one.other[t] if t < len(one.other) else -1 for t in part]
        found = {
            "rank": cells.by_rank(made),
            "quarter": cells.by_quarter(made),
            "seen": cells.by_history(made, _beside(before, made)),
            "token": cells.by_token(made, self.ends),
            "twin": cells.by_twin(made, _beside(twin, made)),
        }
        if made.q is not None:
            found["draft"] = cells.by_draft(made)
        surprises = [surprise(some, p) for some, (p, _) in zip(alike, parts, strict=True)]
        return Look(
            np.stack([cells.numbers(pay.ratio) for pay in pays], axis=1),
            np.stack([cells.numbers(pay.spread) for pay in pays], axis=1),
            found,
            void,
            np.concatenate([cells.numbers(at(part.p, part.y)).astype(np.float64) for part, _ in parts]),
            np.concatenate(surprises),
        )


def _grouped(pieces: Sequence[Piece], limit: int) -> Iterator[list[Piece]]:
    """Consecutive pieces of at most `limit` rows together."""
    group: list[Piece] = []
    for piece in pieces:
        if group and sum(len(part) for _, part in group) + len(piece[1]) > limit:
            yield group
            group = []
        group.append(piece)
    yield group


class Look(NamedTuple):
    """What is kept of some tokens' rows."""

    ratio: np.ndarray  # [n, A]
    spread: np.ndarray  # [n, A]
    cells: dict[str, Cells]
    void: np.ndarray  # [n]
    chance: np.ndarray  # [n] p(y)
    surprise: np.ndarray  # [n, 2] -log of the model's bare probability: of the token, and expected under p


def surprise(pieces: Sequence[Piece], made: Rows) -> np.ndarray:
    """How surprised the model is at each token without any settings, and how surprised it would be on average."""
    logits = joined([one.logits[part.start : part.stop] for one, part in pieces])
    xp = array_namespace(logits)
    bare = law(logits, Sampling())
    logs = xp.log(xp.where(bare > 0, bare, bare * 0 + 1e-45))
    expected = -xp.sum(made.p * xp.astype(logs, xp.float64), axis=-1)
    return np.stack([-cells.numbers(at(logs, made.y)).astype(np.float64), cells.numbers(expected)], axis=1)


def _keys(transcript: Transcript, found: dict[str, Cells], twin: Twin | None) -> dict[str, np.ndarray]:
    """For each token what is known before it: cells of the tokens before, position in the step, the twin."""
    n = len(transcript.output)
    keys = {"none": np.zeros(n, dtype=int), "step": _steps(transcript)}
    for name in ("rank", "quarter", "token", "draft"):
        if name in found:
            cell, mass = found[name]
            size = mass.shape[1]
            known = np.where(mass.sum(axis=1) > 0, cell, size)
            one = np.concatenate([[size], known[:-1]])
            two = np.concatenate([[size], one[:-1]])
            keys[name], keys[f"{name}s"] = one, two * (size + 1) + one
            keys[f"step {name}"] = keys["step"] * (size + 1) + one
    other = np.full(n, cells.QUARTERS)
    agree = np.zeros(n, dtype=int)
    if twin is not None:
        both = min(n, len(twin.output))
        other[:both] = twin.quarter[:both]
        same = np.array(transcript.output[:both]) == np.array(twin.output[:both])
        agree[:both] = np.where(np.concatenate([[True], np.cumprod(same)[:-1] > 0]), 1, 2)
    return {**keys, "twin": agree, "twin quarter": other}


def _steps(transcript: Transcript) -> np.ndarray:
    """[n] accepted guesses just before each token, up to three; the last key where that is not known."""
    n = len(transcript.output)
    if transcript.accepted is None:
        return np.full(n, cells.STEP - 1)
    made, run = np.zeros(n, dtype=int), 0
    for t, accepted in enumerate(transcript.accepted):
        made[t] = min(run, cells.STEP - 2)
        run = run + 1 if accepted else 0
    return made


def _join(parts: Sequence[Any]) -> Any:
    """Arrays, or dicts of cells, of consecutive parts made one."""
    if isinstance(parts[0], dict):
        return {name: Cells(*map(np.concatenate, zip(*(p[name] for p in parts), strict=True))) for name in parts[0]}
    return np.concatenate(parts)


def _beside(tokens: Sequence[int], made: Rows) -> Array:
    return array_namespace(made.p).asarray(np.array(tokens), device=made.p.device)


def _room(target: Model) -> tuple[int, int]:
    return ROOM[facts(target).device]
