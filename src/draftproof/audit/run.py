"""The audit itself: read, bet, remember the worst; memory does not grow with the transcripts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from draftproof.audit import cells
from draftproof.audit.alternatives import Rows, alternatives, payoff
from draftproof.audit.cells import Cells, Entries
from draftproof.audit.evidence import Evidence, Observed
from draftproof.audit.notes import Notes
from draftproof.audit.report import Report, report
from draftproof.audit.rows import Read, batches, read, rows
from draftproof.audit.transcripts import InputError, Transcript, checked
from draftproof.errors import DraftproofError
from draftproof.law import Array, at
from draftproof.models import check_vocabularies
from draftproof.models.session import Model
from draftproof.sampling import Sampling, law

ROOM = {"cpu": (2**25, 2**22), "cuda": (2**30, 2**27)}  # entries of logits in a batch, of each array of laws
PROMPTS = 10_000  # for which the last sample is kept, to compare the next one with


class Twin(NamedTuple):
    """The last sample of a prompt."""

    output: tuple[int, ...]
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
    >>> biased = [Transcript((0,), (1,) * 40, Sampling())]
    >>> audit(biased, coin, tolerance=0.0).exact
    False
    """
    if not 0 < alpha < 1:
        raise DraftproofError(f"alpha must be between 0 and 1, not {alpha!r}")
    if not 0 <= tolerance < 0.5:
        raise DraftproofError(f"tolerance must be at least 0 and below 0.5, in total variation, not {tolerance!r}")
    if draft is not None:
        check_vocabularies(target, draft)
    coming = iter(transcripts)
    first = next(coming, None)
    if first is None:
        raise InputError("there are no transcripts: collect some first")
    auditor = Auditor(target, draft is not None, first.accepted is not None, tolerance)
    sound = (checked(transcript, target) for transcript in chain([first], coming))
    room, _ = _room(target)
    for batch in batches(sound, target.vocabulary, room):
        for one in read(batch, target, draft):
            auditor.add(one)
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

    def add(self, one: Read) -> None:
        """Bet on one transcript's tokens."""
        transcript = one.transcript
        twin = self._twins.get(transcript.prompt)
        length = len(transcript.output)
        looks = [
            self._look(one, range(start, min(start + self._rows, length)), twin)
            for start in range(0, length, self._rows)
        ]
        look = Look(*(_join(parts) for parts in zip(*looks, strict=True)))
        keys = _keys(transcript, look.cells, twin)
        entries = [Entries(keys[t.key], *look.cells[t.cells]) for t in self.tables]
        gains = self.evidence.add(Observed(look.ratio, look.spread, entries, look.void))
        self.notes.take(transcript, look.chance, look.void, look.surprise, gains)
        self._twins[transcript.prompt] = Twin(transcript.output, look.cells["quarter"].cell)
        self._twins.move_to_end(transcript.prompt)
        if len(self._twins) > PROMPTS:
            self._twins.popitem(last=False)

    def _look(self, one: Read, part: range, twin: Twin | None) -> Look:
        made, void = rows(one, part, self.tolerance)
        pays = [payoff(alternative, made, self.tolerance) for alternative in self.alternatives]
        transcript = one.transcript
        before = (transcript.prompt[-1], *transcript.output)[part.start : part.stop]
        other = [-1 if twin is None or t >= len(twin.output) else twin.output[t] for t in part]
        found = {
            "rank": cells.by_rank(made),
            "quarter": cells.by_quarter(made),
            "seen": cells.by_history(made, _beside(before, made)),
            "token": cells.by_token(made, self.ends),
            "twin": cells.by_twin(made, _beside(other, made)),
        }
        if made.q is not None:
            found["draft"] = cells.by_draft(made)
        return Look(
            np.stack([cells.numbers(pay.ratio) for pay in pays], axis=1),
            np.stack([cells.numbers(pay.spread) for pay in pays], axis=1),
            found,
            cells.numbers(void),
            cells.numbers(at(made.p, made.y)),
            surprise(one.logits[part.start : part.stop], made),
        )


class Look(NamedTuple):
    """What is kept of some tokens' rows."""

    ratio: np.ndarray  # [n, A]
    spread: np.ndarray  # [n, A]
    cells: dict[str, Cells]
    void: np.ndarray  # [n]
    chance: np.ndarray  # [n] p(y)
    surprise: np.ndarray  # [n, 2] -log of the model's bare probability: of the token, and expected under p


def surprise(logits: Array, made: Rows) -> np.ndarray:
    """How surprised the model is at each token without any settings, and how surprised it would be on average."""
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
    network = getattr(target, "network", None)
    return ROOM["cuda" if network is not None and network.device.type == "cuda" else "cpu"]
