"""What an audit remembers besides its evidence: the worst tokens, the settings, how surprised the model was."""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

import numpy as np

from draftproof.audit.transcripts import InputError, Transcript

SPOTS = 10  # worst tokens that are kept
FEW = 50  # tokens before a perplexity is believed
SMALL = 100  # below that many tokens in the vocabulary a perplexity says nothing


class Spot(NamedTuple):
    """One token and how much it added to the log evidence."""

    gain: float
    line: int
    position: int
    token: int
    chance: float  # under p
    before: tuple[int, ...]  # the last tokens of the text so far


class Notes:
    """Running sums of an audit; their size does not depend on how much is audited."""

    def __init__(self, target: str, vocabulary: int, tolerance: float) -> None:
        self.target, self.vocabulary, self.tolerance = target, vocabulary, tolerance
        self.transcripts = self.tokens = self.void = self.impossible = self.retokenised = 0
        self.temperatures: set[float] = set()
        self.surprise = np.zeros(2)  # what it was in sum, and what the settings' law makes one expect
        self._worst: list[tuple[float, int, Spot]] = []

    @property
    def worst(self) -> list[Spot]:
        """The tokens that added most, largest first."""
        return [spot for _, _, spot in sorted(self._worst, reverse=True)]

    def take(
        self, transcript: Transcript, chance: np.ndarray, void: np.ndarray, surprise: np.ndarray, gains: np.ndarray
    ) -> None:
        """One more transcript: p(y), void bets and gains [n], surprise had and expected [n, 2]."""
        self.transcripts += 1
        self.tokens += len(gains)
        self.void += int(void.sum())
        self.impossible += int(((chance == 0) & ~void).sum())
        self.retokenised += transcript.retokenised
        temperature = transcript.sampling.temperature
        if not callable(temperature) and len(self.temperatures) < 2:
            self.temperatures.add(float(temperature))
        self.surprise += surprise.sum(axis=0)
        self._check(transcript.line)
        for t in np.argsort(-gains, kind="stable")[:SPOTS]:
            text = transcript.prompt + transcript.output[:t]
            spot = Spot(float(gains[t]), transcript.line, int(t), transcript.output[t], float(chance[t]), text[-12:])
            entry = (spot.gain, -self.tokens, spot)
            if len(self._worst) < SPOTS:
                heapq.heappush(self._worst, entry)
            elif entry > self._worst[0]:
                heapq.heapreplace(self._worst, entry)

    def _check(self, line: int) -> None:
        """Worse than throwing dice, and no setting asks for it: not this model's tokens at all."""
        had, expected = self.surprise / self.tokens
        if self.vocabulary >= SMALL and self.tokens >= FEW and had > max(math.log(self.vocabulary), expected + 2):
            raise InputError(
                f"line {line}: so far the outputs have a perplexity of {math.exp(min(had, 99)):.3g} under "
                f"{self.target!r}, above its {self.vocabulary} tokens: wrong model or tokenizer, so there is no verdict"
            )
