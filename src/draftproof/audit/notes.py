"""What an audit records besides its evidence: the worst tokens, the settings, the perplexity."""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

import numpy as np

from draftproof.audit.transcripts import InputError, Transcript

SPOTS = 10  # worst tokens that are recorded
FEW = 50  # tokens before the perplexity is checked
SMALL = 100  # vocabularies below this size are not checked: their perplexity tells nothing


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
        self.surprise = np.zeros(2)  # summed over tokens: observed, and expected under the settings
        self._worst: list[tuple[float, int, Spot]] = []

    @property
    def worst(self) -> list[Spot]:
        """The tokens that added most, largest first."""
        return [spot for _, _, spot in sorted(self._worst, reverse=True)]

    def take(self, transcript: Transcript, chance: np.ndarray, void: np.ndarray, surprise: np.ndarray) -> None:
        """Record one more transcript: p(y) and void bets [n], observed and expected surprise [n, 2]."""
        self.transcripts += 1
        self.tokens += len(chance)
        self.void += int(void.sum())
        self.impossible += int(((chance == 0) & ~void).sum())
        self.retokenised += transcript.retokenised
        temperature = transcript.sampling.temperature
        if not callable(temperature) and len(self.temperatures) < 2:
            self.temperatures.add(float(temperature))
        self.surprise += surprise.sum(axis=0)
        self._check(transcript.line)

    def rank(self, transcript: Transcript, chance: np.ndarray, gains: np.ndarray) -> None:
        """Keep the tokens of a transcript that added most to the evidence, if they are among the worst so far."""
        for t in np.argsort(-gains, kind="stable")[:SPOTS]:
            text = transcript.prompt + transcript.output[:t]
            spot = Spot(float(gains[t]), transcript.line, int(t), transcript.output[t], float(chance[t]), text[-12:])
            entry = (spot.gain, -self.tokens, spot)
            if len(self._worst) < SPOTS:
                heapq.heappush(self._worst, entry)
            elif entry > self._worst[0]:
                heapq.heapreplace(self._worst, entry)

    def _check(self, line: int) -> None:
        """Raise if the text is less likely than uniform noise without a setting that explains it: a wrong model."""
        observed, expected = self.surprise / self.tokens
        if self.vocabulary >= SMALL and self.tokens >= FEW and observed > max(math.log(self.vocabulary), expected + 2):
            raise InputError(
                f"line {line}: so far the outputs have a perplexity of {math.exp(min(observed, 99)):.3g} under "
                f"{self.target!r}, above its {self.vocabulary} tokens: wrong model or tokenizer, so there is no verdict"
            )
