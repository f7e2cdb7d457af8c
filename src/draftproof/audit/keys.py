"""The keys of learned bets, all known before a token is drawn: cells of the tokens before, the step, another sample."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from draftproof.audit import cells
from draftproof.audit.cells import Cells
from draftproof.audit.transcripts import Transcript


class Twin(NamedTuple):
    """An earlier sample of a prompt: its output, and the quarter of each token."""

    output: tuple[int, ...]
    quarter: np.ndarray


def keys(transcript: Transcript, splits: dict[str, Cells], twin: Twin | None) -> dict[str, np.ndarray]:
    """The keys of each token by name."""
    n = len(transcript.output)
    named = {"none": np.zeros(n, dtype=int), "step": steps(transcript), "two steps": two_steps(transcript)}
    for name in ("rank", "quarter", "token", "draft"):
        if name in splits:
            cell, mass = splits[name]
            size = mass.shape[1]
            cell_or_none = np.where(mass.sum(axis=1) > 0, cell, size)
            last = np.concatenate([[size], cell_or_none[:-1]])
            second_last = np.concatenate([[size], last[:-1]])
            named[name], named[f"{name}s"] = last, second_last * (size + 1) + last
            named[f"step {name}"] = named["step"] * (size + 1) + last
    twin_quarter = np.full(n, cells.QUARTERS)
    agree = np.zeros(n, dtype=int)
    if twin is not None:
        both = min(n, len(twin.output))
        twin_quarter[:both] = twin.quarter[:both]
        same = np.array(transcript.output[:both]) == np.array(twin.output[:both])
        agree[:both] = np.where(np.concatenate([[True], np.cumprod(same)[:-1] > 0]), 1, 2)
    return {**named, "twin": agree, "twin quarter": twin_quarter}


def steps(transcript: Transcript) -> np.ndarray:
    """Number of accepted guesses just before each token [n], up to three; the last key where it is unknown."""
    if transcript.accepted is None:
        return np.full(len(transcript.output), cells.STEP - 1)
    return np.minimum(Steps(transcript).position, cells.STEP - 2)


def two_steps(transcript: Transcript) -> np.ndarray:
    """The same together with the number of guesses that the step before accepted, up to four; 5 where there is none."""
    before = cells.BEFORE - 1
    if transcript.accepted is None:
        return np.full(len(transcript.output), cells.STEP * cells.BEFORE - 1)
    last = Steps(transcript).before
    return steps(transcript) * cells.BEFORE + np.where(last < 0, before, np.minimum(last, before - 1))


class Steps:
    """The steps of a transcript: what is known of them before each token [n]."""

    def __init__(self, transcript: Transcript) -> None:
        n = len(transcript.output)
        self.position = np.zeros(n, dtype=int)  # accepted guesses of this step so far
        self.before = np.full(n, -1)  # accepted guesses of the step before; -1 in the first step
        run, last = 0, -1
        for t, accepted in enumerate(transcript.accepted or (False,) * n):
            self.position[t], self.before[t] = run, last
            run, last = (run + 1, last) if accepted else (0, run)


class DraftLength:
    """The most guesses that a step has accepted so far: at least so long is a draft."""

    def __init__(self) -> None:
        self.longest = 0

    def again(self, transcript: Transcript) -> np.ndarray | None:
        """Whether the step before had a guess for each position [n], which was not reached; None if unknown.

        Only the first position of a step counts: what follows it depends on what was accepted there.
        """
        if transcript.accepted is None:
            return None
        made = Steps(transcript)
        # a step is over when the next one begins, so its length is known there
        longest = np.maximum.accumulate(np.maximum(np.maximum(made.before, made.position), self.longest))
        self.longest = int(longest[-1])
        again: np.ndarray = (made.position == 0) & (made.before >= 0) & (made.before < longest - 1)
        return again
