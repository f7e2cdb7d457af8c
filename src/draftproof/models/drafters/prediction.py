"""Predicted outputs: the caller says what the text will be much like, and that text is the draft.

Where the text follows the prediction, the prediction's next tokens are drafted. Where it departs, the end of the text
is looked up in the prediction, from the place on where they parted; until it is found there, one token is taken to
stand for another. A draft token has all the mass of its law, so every verifier is exact, however wrong the prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from draftproof.draft import Tree
from draftproof.law import Array
from draftproof.models.drafters.points import each_path, point_laws

LONGEST, SHORTEST = 8, 2  # tokens at the end of the text that are looked up


class Prediction:
    """The drafter for any target of this vocabulary size; each request brings its own prediction."""

    def __init__(self, vocabulary: int) -> None:
        self.name = "prediction"
        self.vocabulary = vocabulary
        self.context: int | None = None
        self.end_tokens: tuple[int, ...] = ()
        self.tokenizer = None

    def session(self, rows: int, capacity: int) -> PredictionSession:
        return PredictionSession(self, rows)


class Expected(NamedTuple):
    """A prediction, and where each pair of tokens ends in it."""

    tokens: tuple[int, ...] = ()
    ends: Mapping[tuple[int, ...], Sequence[int]] = MappingProxyType({})

    @staticmethod
    def of(tokens: Sequence[int]) -> Expected:
        ends: dict[tuple[int, ...], list[int]] = {}
        for end in range(SHORTEST, len(tokens) + 1):
            ends.setdefault(tuple(tokens[end - SHORTEST : end]), []).append(end)
        return Expected(tuple(tokens), ends)

    def find(self, end: Sequence[int], near: int) -> int | None:
        """The index after the longest end of a text that occurs here; of several, the next one after `near`.

        >>> Expected.of((5, 1, 2, 3, 1, 2, 4)).find((9, 1, 2), near=5)
        6
        """
        places = self.ends.get(tuple(end[-SHORTEST:]), ())
        return max(
            places, key=lambda place: (self._matching(end, place), place > near, -abs(place - near)), default=None
        )

    def _matching(self, end: Sequence[int], place: int) -> int:
        """How many tokens before `place` are those at the end of a text."""
        size = SHORTEST
        while size < min(len(end), place) and self.tokens[place - size - 1] == end[-size - 1]:
            size += 1
        return size


def speaks_at(prediction: Sequence[int], parts: Sequence[Sequence[int]]) -> list[bool]:
    """Whether the prediction has a draft token before each of these parts of a text, which follow one another.

    >>> speaks_at([5, 6, 7], [[5, 6], [7], [8]])
    [True, True, False]
    """
    session, found = PredictionSession(Prediction(0), 1), []
    session.predict(0, prediction)
    for part in parts:
        found.append(session._guess(0, ()) >= 0)
        session.places[0], session.ends[0] = session._follow(0, part)
    return found


class Alignment(NamedTuple):
    """Where a text is in its prediction."""

    next: int  # index of the token that should follow
    parted: int | None  # where text and prediction parted, until they are found together again


class PredictionSession:
    """Each row's prediction, the end of its text, and its place in the prediction."""

    speaks: Literal["logits", "law"] = "law"

    def __init__(self, model: Prediction, rows: int) -> None:
        self.model = model
        self.predictions = [Expected()] * rows
        self.places = [Alignment(0, None)] * rows
        self.ends: list[tuple[int, ...]] = [()] * rows  # the last tokens of the text

    def join(self, row: int, tokens: Sequence[int]) -> None:
        self.predictions[row], self.places[row], self.ends[row] = Expected(), Alignment(0, None), ()

    def predict(self, row: int, tokens: Sequence[int]) -> None:
        """What the text of this row is expected to be."""
        self.predictions[row] = Expected.of([int(token) for token in tokens])

    def copy(self, source: int, target: int) -> None:
        self.predictions[target], self.places[target] = self.predictions[source], self.places[source]
        self.ends[target] = self.ends[source]

    def extend(self, tree: Tree, tokens: Array, nodes: range) -> Array:
        return point_laws(self.guess(tree, tokens, nodes), self.model.vocabulary)

    def guess(self, tree: Tree, tokens: Array, nodes: range) -> np.ndarray:
        """The draft tokens [B, len(nodes)]; -1 where the prediction says nothing."""
        return each_path(tree, tokens, nodes, self._guess)

    def commit(self, tree: Tree, tokens: Array, node: Sequence[int], token: Sequence[int]) -> None:
        for b, last in enumerate(node):
            if self.predictions[b].tokens:
                path = [*(int(tokens[b][n]) for n in tree.path(int(last))), int(token[b])]
                self.places[b], self.ends[b] = self._follow(b, path)

    def _guess(self, row: int, path: Sequence[int]) -> int:
        expected = self.predictions[row].tokens
        place = self._follow(row, path)[0].next if expected else 0
        return expected[place] if place < len(expected) else -1

    def _follow(self, row: int, path: Sequence[int]) -> tuple[Alignment, tuple[int, ...]]:
        """The place after some more tokens, and the end of the text with them."""
        expected, place, end = self.predictions[row], self.places[row], self.ends[row]
        for token in path:
            end = (*end, token)[-LONGEST:]
            follows = place.next < len(expected.tokens) and expected.tokens[place.next] == token
            if follows and place.parted is None:
                place = Alignment(place.next + 1, None)
                continue
            parted = place.next if place.parted is None else place.parted
            found = expected.find(end, parted)
            place = Alignment(place.next + 1, parted) if found is None else Alignment(found, None)
        return place, end
