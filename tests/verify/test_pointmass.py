"""Guesses that are certain: the law of every exact rule, without q; and a step without a guess asks for nothing."""

from __future__ import annotations

import numpy as np
import pytest

import draftproof as dp
from draftproof import law, verify
from draftproof.draft import Draft
from draftproof.models.drafters.ngram import NGram, NGramSession
from draftproof.theory.enumerate import target_law
from draftproof.verify._pointmass import POINT_MASS
from tests.support import gof
from tests.support.schedulers import PROMPT, samples, table


@pytest.mark.parametrize("rule", ["onehot", "token", "block", "match"])
def test_it_is_every_rule_on_guesses_without_noise(rule):
    chance = np.random.default_rng(1)
    tree = dp.Tree.chain(3)
    p = chance.dirichlet(np.ones(4), size=(30, tree.size))
    tokens = chance.integers(0, 4, size=(30, tree.size))
    for row, length in enumerate(chance.integers(0, 4, size=30)):
        tokens[row, length + 1 :] = -1  # a shorter draft
    q = np.concatenate([law.one_hot(tokens[:, 1:], like=p), p[:, :1] * 0], axis=1)
    draft, known = Draft(tree, tokens, p[..., :0], p), verify.get(rule)
    stop = POINT_MASS.stop(draft)
    assert stop == pytest.approx(known.stop(draft._replace(q=q)))
    for node in range(tree.size):
        reached = stop[:, node] > 0
        nodes = np.full(30, node)
        theirs = known.next(draft._replace(q=q), nodes)
        assert law.normalise(POINT_MASS.next(draft, nodes))[reached] == pytest.approx(theirs[reached])


def test_text_with_phrases_found_again_follows_the_target():
    target = table(1, size=3, floor=0.2)
    counts, requests = samples(
        target, NGram(3, longest=2, shortest=1), verify.get("block"), dp.Tree.chain(3), length=3, count=2500
    )
    gof.check(counts, target_law(target.rows, 3, PROMPT))
    assert sum(request.trace.accepted for request in requests) > 150


def test_samples_that_share_such_guesses_stay_independent():
    target = table(1, size=3, floor=0.2)
    draft = NGram(3, longest=2, shortest=1)
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(1200):
        pair = dp.generate(target, [0, 1, 0], n=2, draft=draft, tree=dp.Tree.chain(2), max_new_tokens=1, seed=seed)
        key = tuple(out.tokens[0] for out in pair)
        counts[key] = counts.get(key, 0) + 1
    one = target_law(target.rows, 1, (0, 1, 0))
    gof.check(counts, {(a[0], b[0]): one[a] * one[b] for a in one for b in one})


def test_silence_ends_the_asking(monkeypatch):
    """Nothing to guess after the text: one question, and a plain step."""
    asked = []
    answer = NGramSession.guess
    monkeypatch.setattr(NGramSession, "guess", lambda *args: asked.append(args[-1]) or answer(*args))
    out = dp.generate(table(1), [0, 1], draft="ngram", tree=dp.Tree.chain(5), max_new_tokens=2, seed=1)
    assert [step.drafted for step in out.trace.steps] == [0] * len(out.trace.steps)
    assert asked == [range(1)] * len(out.trace.steps)
