"""What holds in the engine for every rule: no number is used twice, and a text is the one it is alone."""

from __future__ import annotations

import numpy as np
import pytest

import draftproof as dp
from draftproof import verify
from draftproof.engine.eager.propose import point_proposal
from draftproof.engine.eager.rows import Row
from draftproof.engine.request import SampleKey
from draftproof.models.base import sessions
from draftproof.models.drafters.ngram import NGram
from draftproof.models.table import TableModel, TableSession
from draftproof.native import build, step
from tests.support import heads, tiny
from tests.support.schedulers import ask, eager, finish, table

RULES = sorted(verify.VERIFIERS)


def shape(verifier: dp.Verifier) -> dp.Tree:
    """A small draft of a kind the verifier takes."""
    shapes = (dp.Tree.of(3, 2), dp.Tree.paths(3, 2), dp.Tree.star(3), dp.Tree.chain(3))
    return next(tree for tree in shapes if verifier.accepts(tree))


@pytest.mark.parametrize("name", RULES)
def test_no_rule_uses_a_number_twice(name, names):
    tree = shape(verify.get(name))
    dp.generate(table(1), [0], draft=table(2), verify=name, tree=tree, max_new_tokens=12, seed=1)
    assert len(names) > 12
    assert set(names.values()) == {1}


@pytest.mark.parametrize("name", ["token", "block"])
def test_nor_does_a_chain_that_is_drafted_and_verified_in_c(name, names, monkeypatch):
    if build.compiled() is None:
        pytest.skip("no compiler")
    made, verified = [], step.verify
    monkeypatch.setattr(step, "verify", lambda *given: (made.append(given), verified(*given))[1])
    target = tiny.model()
    draft = heads.drafter("head", target)
    dp.generate(target, "abc", draft=draft, verify=name, tree=dp.Tree.chain(3), max_new_tokens=12, seed=1)
    assert made
    assert set(names.values()) == {1}


@pytest.mark.parametrize("name", ["token", "block"])
def test_a_chain_in_c_is_that_of_the_core(name, monkeypatch):
    """The same numbers give the same draft tokens, and the same text."""
    if build.compiled() is None:
        pytest.skip("no compiler")
    target, made = tiny.model(), []
    settings = {
        "verify": name,
        "tree": dp.Tree.chain(3),
        "sampling": dp.Sampling(temperature=0.7),
        "max_new_tokens": 20,
    }
    for _ in range(2):
        draft = heads.drafter("head", target)
        texts = [dp.generate(target, "abc", draft=draft, seed=seed, **settings) for seed in range(4)]
        made.append([(text.tokens, [step.accepted for step in text.trace.steps]) for text in texts])
        monkeypatch.setattr(build, "compiled", lambda: None)
    assert made[0] == made[1]
    assert any(sum(accepted) for _, accepted in made[0])


@pytest.mark.parametrize("drafters", [1, 2])
@pytest.mark.parametrize("name", RULES)
def test_a_text_is_the_one_it_is_alone(name, drafters):
    """Beside others that end earlier, are drafted less deep, share a row, or have no draft token here and there."""
    rule = verify.get(name)
    if drafters > 1 and not rule.mixes:
        return
    target, tree, plain = table(1), shape(rule), dp.Sampling()
    drafts = [table(2), table(3)][:drafters]
    narrow = dp.Sampling(top_k=2)  # fewer tokens than siblings

    def asked(numbers: range) -> list:
        samplings = [plain, narrow, plain, narrow]
        return [ask(target, (n % 3, n), samplings[n], samplings[n], (9, 1, 12, 7)[n], (5, n)) for n in numbers]

    together = asked(range(4))
    twins = [ask(target, (1, 1), plain, plain, 8, (6, r)) for r in range(2)]
    batch = eager(target, drafts, rule, tree, 6, 0)
    for group in ([together[0]], twins, *([one] for one in together[1:])):
        batch.add(group)
    finish(batch)
    for n, one in enumerate(together):
        (single,) = asked(range(n, n + 1))
        batch = eager(target, drafts, rule, tree, 1, 0)
        batch.add([single])
        finish(batch)
        assert single.tokens == one.tokens


class Says(TableModel):
    """A drafter that answers the same row everywhere, as a law or as logits."""

    def __init__(self, speaks: str, row: list[float]) -> None:
        super().__init__(lambda context: [1 / 3] * 3)
        self.speaks, self.row = speaks, row

    def session(self, rows, capacity):
        session = TableSession(self, rows)
        session.speaks = self.speaks
        session.extend = lambda tree, tokens, nodes: np.full((len(tokens), len(nodes), len(self.row)), self.row)
        return session


@pytest.mark.parametrize(
    ("speaks", "row", "drafts", "fails"),
    [
        ("law", [0.2, 0.3, 0.5], True, False),
        ("law", [0.0, 0.0, 0.0], False, False),  # no guess
        ("law", [0.1, 0.2, 0.2], False, True),
        ("law", [-0.2, 0.7, 0.5], False, True),
        ("law", [0.5, 0.5], False, True),
        ("logits", [0.0, 1.0, 2.0], True, False),
        ("logits", [-np.inf] * 3, False, False),  # no guess
        ("logits", [0.0, np.nan, 2.0], False, True),
    ],
)
def test_what_a_drafter_may_say(speaks, row, drafts, fails):
    settings = {"tree": dp.Tree.chain(2), "max_new_tokens": 6, "seed": 1}
    trace = dp.generate(table(1, size=3), [0], draft=Says(speaks, row), **settings).trace
    assert (sum(step.drafted for step in trace.steps) > 0, bool(trace.failures)) == (drafts, fails)


def test_no_row_is_drafted_deeper_than_it_asks():
    target, plain = table(1), dp.Sampling()
    _, drafters = sessions(target, [NGram(5)], 3, 0)
    rows = [Row((1, 2, 3) * 3, (), plain, plain, (SampleKey(1, b),), 0, depth) for b, depth in enumerate((3, 1, 0))]
    for b, row in enumerate(rows):
        drafters[0].session.join(b, row.prompt)
    made = point_proposal(rows, drafters, dp.Tree.chain(4), 5)
    assert made.tokens.tolist() == [[3, 1, 2, 3], [3, 1, -1, -1], [3, -1, -1, -1]]
