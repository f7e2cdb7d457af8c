"""Mixed drafters: who guesses is settled before anything is drawn, and who is not needed is not asked."""

from __future__ import annotations

import numpy as np
import pytest

import draftproof as dp
from draftproof import models, verify
from draftproof.models.drafters.fallback import Fallback
from draftproof.models.drafters.ngram import NGram
from draftproof.models.drafters.recall import Recall
from draftproof.models.table import TableModel
from draftproof.theory.enumerate import target_law
from tests.support import gof, tiny
from tests.support.schedulers import PROMPT, samples, table


class Counting(TableModel):
    """A table that counts how often it is asked."""

    asked = 0

    def session(self, rows, capacity):
        made = super().session(rows, capacity)
        answer = made.extend

        def extend(*args):
            self.asked += 1
            return answer(*args)

        made.extend = extend
        return made


@pytest.mark.parametrize("rule", ["block", "nodeplan"])
def test_the_law_is_the_targets(rule):
    """An n-gram of one token finds something in some rows and nothing in others; the memory is wrong for most."""
    target = table(1, size=3, floor=0.2)
    parts = [NGram(3, longest=2, shortest=2), Recall(3, suffix=3, kept=2), table(2, size=3)]
    tree = dp.Tree.chain(2) if rule != "nodeplan" else dp.Tree.of(2, 1)
    length = 4
    counts, requests = samples(target, Fallback(parts), verify.get(rule), tree, length=length, count=3600)
    gof.check(counts, target_law(target.rows, length, PROMPT))
    assert sum(request.trace.accepted for request in requests) > 1300


def test_each_row_is_guessed_by_the_first_that_has_a_guess():
    session = Fallback([NGram(4), table(2, size=4)]).session(2, 20)
    session.join(0, [1, 2, 3, 1, 2])
    session.join(1, [1, 2, 3, 2, 1])
    tree, tokens = dp.Tree.chain(2), np.array([[2, -1, -1], [1, -1, -1]])
    said = session.extend(tree, tokens, range(1))
    assert said[0, 0].argmax() == 3
    assert np.exp(said[1, 0]) == pytest.approx(table(2, size=4).rows((1, 2, 3, 2, 1)))
    tokens[:, 1] = 3, 0
    said = session.extend(tree, tokens, range(1, 2))
    assert said[0, 0].argmax() == 1  # the phrase goes on
    assert np.exp(said[1, 0]) == pytest.approx(table(2, size=4).rows((1, 2, 3, 2, 1, 0)))


def test_a_drafter_that_nobody_needs_is_not_asked_and_catches_up():
    model = Counting(table(2, size=4).rows)
    session = Fallback([NGram(4), model]).session(1, 20)
    session.join(0, [1, 2, 3, 1, 2])
    tree = dp.Tree.chain(1)
    session.extend(tree, np.array([[2, -1]]), range(1))
    assert model.asked == 0
    session.commit(tree, np.array([[2, 3]]), [1], [0])
    said = session.extend(tree, np.array([[0, -1]]), range(1))
    assert model.asked == 1
    assert np.exp(said[0, 0]) == pytest.approx(table(2, size=4).rows((1, 2, 3, 1, 2, 3, 0)))


def test_networks_fall_behind_and_catch_up():
    """A repetitive prompt: the phrase is found in some steps, the small network guesses in the others."""
    target, small = tiny.model(), tiny.model("llama", 1)
    mixed = models.drafter("ngram|cache", target)
    assert mixed.name == "ngram|cache"
    settings = {"sampling": dp.Sampling(temperature=0), "max_new_tokens": 40, "tree": dp.Tree.chain(3)}
    plain = dp.generate(target, "abcabcabc", draft=None, **settings)
    for parts in ([NGram(tiny.VOCABULARY), small], [Recall(tiny.VOCABULARY), NGram(tiny.VOCABULARY), small]):
        out = dp.generate(target, "abcabcabc", draft=Fallback(parts), **settings)
        assert out.tokens == plain.tokens
        assert not out.trace.failures
    alone = dp.generate(target, "abcabcabc", draft=Fallback([NGram(tiny.VOCABULARY), target]), **settings)
    assert alone.trace.tokens_per_call > 2  # the network's guesses are its own words, so its text is not out of date


def test_a_guess_that_a_control_forbids_costs_nothing_but_itself():
    target = tiny.model()
    banned = dp.Sampling(banned=list(b"abc"))
    draft = Fallback([NGram(tiny.VOCABULARY), tiny.model("llama", 1)])
    out = dp.generate(target, "abcabcabc", draft=draft, sampling=banned, tree=dp.Tree.chain(2), max_new_tokens=20)
    assert not out.trace.failures
    assert not set(out.tokens) & set(b"abc")


def test_what_cannot_be_mixed_is_refused():
    with pytest.raises(dp.DraftproofError, match="at least two drafters, not 1"):
        Fallback([NGram(4)])
    with pytest.raises(dp.DraftproofError, match="one vocabulary, not ngram 4, ngram 5"):
        Fallback([NGram(4), NGram(5)])
