"""A predicted text is drafted where the text follows it, and again where the two come together after they parted."""

from __future__ import annotations

import numpy as np
import pytest

import draftproof as dp
from draftproof.models.drafters.prediction import Prediction

VOCABULARY = 50


def drafted(prediction, written, length=6):
    """What is drafted after a text was written token by token."""
    session = Prediction(VOCABULARY).session(2, 100)
    session.join(1, [0])
    session.predict(1, prediction)
    session.copy(1, 0)
    for token in written:
        session.commit(dp.Tree.chain(0), np.zeros((1, 1), int), [0], [token])
    chain = dp.Tree.chain(length)
    tokens = np.full((1, chain.size), -1)
    tokens[0, 0] = 0
    for node in range(length):
        tokens[0, node + 1] = session.guess(chain, tokens, range(node, node + 1))[0, 0]
    return [token for token in tokens[0, 1:].tolist() if token >= 0]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([], [1, 2, 3, 4, 5, 6]),
        ([1, 2], [3, 4, 5, 6, 7, 8]),
        ([1, 2, 40], [4, 5, 6, 7, 8, 9]),  # one token for another
        ([1, 2, 40, 41], [5, 6, 7, 8, 9, 10]),
        ([1, 2, 40, 3, 4], [5, 6, 7, 8, 9, 10]),  # one put in
        ([1, 2, 5, 6], [7, 8, 9, 10]),  # two left out
        ([40, 41, 42, 8, 9], [10]),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], []),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], []),
    ],
)
def test_the_draft_goes_on_where_text_and_prediction_meet(written, expected):
    assert drafted(range(1, 11), written) == expected


def test_the_nearest_of_several_places_counts():
    prediction = [1, 2, 3, 1, 2, 4, 1, 2, 5]
    assert drafted(prediction, [1, 2, 3, 40, 1, 2], 1) == [4]
    assert drafted(prediction, [40, 3, 1, 2], 1) == [4], "a longer match counts more than a nearer one"


def test_without_a_prediction_nothing_is_drafted():
    session = Prediction(VOCABULARY).session(1, 100)
    session.join(0, [1, 2])
    assert session.extend(dp.Tree.chain(2), np.zeros((1, 3), int), range(1)).sum() == 0
    session.predict(0, [3])
    law = session.extend(dp.Tree.chain(2), np.zeros((1, 3), int), range(1))
    assert law[0, 0].tolist() == [float(token == 3) for token in range(VOCABULARY)]
    session.join(0, [1, 2])  # another text
    assert session.extend(dp.Tree.chain(2), np.zeros((1, 3), int), range(1)).sum() == 0
