"""The comparison of heads on given texts: how often a token of the target's own is accepted."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.heads import acceptance
from draftproof import Grammar
from draftproof.models import grammars
from draftproof.models.table import TableModel
from draftproof.native import build

P, Q, IDS = (0.1, 0.4, 0.2, 0.3), (0.5, 0.25, 0.25), np.array([0, 1, 3])


@pytest.fixture(autouse=True)
def compiled():
    if build.compiled() is None:
        pytest.skip("no compiler")


def chance(token, state=None, temperature=1.0):
    scores = [np.log(np.array(law, dtype=np.float32)) for law in (P, Q)]
    return acceptance(*scores, IDS, token, state, temperature)


def test_a_token_is_accepted_as_often_as_q_has_it_beside_p():
    assert [chance(token) for token in range(4)] == pytest.approx([1.0, 0.25 / 0.4, 0.0, 0.25 / 0.3], rel=1e-5)


def test_laws_are_those_at_the_temperature():
    p, q = (np.array(law) ** 2 / sum(np.array(law) ** 2) for law in (P, Q))
    assert chance(1, temperature=0.5) == pytest.approx(q[1] / p[1], rel=1e-5)


def test_under_a_grammar_laws_are_of_what_it_allows_and_what_is_sure_is_accepted():
    grammar = Grammar.tokens([{1: 1, 3: 1, 2: 1}, {2: 2}, {}], accepting=[2])
    start = grammars.start(grammar, TableModel(lambda context: list(P)), ())
    assert chance(1, start) == pytest.approx(min(1, (0.25 / 0.5) / (0.4 / 0.9)), rel=1e-5)
    assert chance(3, start) == 1.0
    assert chance(2, start.after(1)) == 1.0
