"""A shorter text with the same seed is the beginning of the longer one, whatever drafts and verifies it."""

from __future__ import annotations

import pytest

import draftproof as dp
from draftproof import couple, verify
from draftproof.models.table import TableModel
from tests.support import tiny
from tests.support.schedulers import LENGTH, ask, finish, graph, table

LONG, SHORTER = 17, (1, 2, 5, 11, 16)
SHAPES = ("chain:4", "star:2", "paths:2x2", "of:2x1", "best:6x3")
LOSSY = ("clipped:1.25", "lenience:0.8", "skip:0.9", "typical:0.09,0.3")


def settings():
    """Every rule, on every shape that it takes and on the one that is chosen for it."""
    for name in sorted(verify.VERIFIERS):
        for shape in SHAPES:
            if verify.get(name).accepts(dp.Tree.parse(shape)):
                yield {"verify": name, "tree": shape}
        yield {"verify": name}
    for name in sorted(couple.COUPLINGS):
        yield from ({"verify": name, "tree": shape} for shape in (None, *SHAPES))
    for name in LOSSY:
        yield from ({"lossy": name, "tree": shape} for shape in (None, "chain:4"))
    yield {"verify": "block", "tree": "auto"}


def like(target: TableModel, other: TableModel) -> TableModel:
    """A drafter that is right more often than not, so that drafts end within a text."""
    return TableModel(lambda context: 0.7 * target.rows(context) + 0.3 * other.rows(context), "like")


TARGET = table(1, size=4)
DRAFT = like(TARGET, table(2, size=4))


@pytest.mark.parametrize("how", list(settings()), ids=lambda how: "-".join(map(str, how.values())))
def test_a_shorter_text_is_the_beginning_of_a_longer_one(how):
    def texts(length, seed):
        made = dp.generate(TARGET, [0], n=2, draft=DRAFT, max_new_tokens=length, seed=seed, **how)
        assert all(text.trace.tokens == length for text in made)
        return [text.tokens for text in made]

    for seed in (1, 2):
        whole = texts(LONG, seed)
        for length in SHORTER:
            assert texts(length, seed) == [tokens[:length] for tokens in whole]


@pytest.mark.parametrize("tree", [None, "chain:4"])
def test_in_an_engine_too(tree):
    engine = dp.Engine(TARGET, draft=DRAFT, tree=tree, rows=3)
    requests = [engine.add_request([0], max_new_tokens=length, seed=5) for length in (*SHORTER, LONG)]
    while not engine.is_finished:
        engine.step()
    whole = requests[-1].tokens
    assert [request.tokens for request in requests] == [whole[:length] for length in (*SHORTER, LONG)]


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_full_context_is_an_end_for_both(rule):
    short = TableModel(TARGET.rows, "short", context=12)
    one, other = (
        dp.generate(short, [0], draft=DRAFT, verify=rule, tree="chain:4", max_new_tokens=length, seed=3)
        for length in (9, 50)
    )
    assert (one.finish, other.finish, len(other.tokens)) == ("length", "context", 11)
    assert one.tokens == other.tokens[:9]


@pytest.mark.parametrize(
    ("rule", "tree"), [("token", dp.Tree.chain(3)), ("block", dp.Tree.chain(5)), ("traversal", dp.Tree.best(9, 3))]
)
def test_the_graph_stepper_drafts_beyond_the_end_too(rule, tree):
    target, sampling = tiny.model(), dp.Sampling(temperature=0.7, end_tokens=())
    draft = tiny.model()  # is always right: each step that is cut would have gone on

    def text(length):
        request = ask(target, [65, 66], sampling, sampling, length, (11, 0))
        batch = graph(target, draft, rule, tree, 1, 60)
        batch.add([request])
        finish(batch)
        return request.tokens

    whole = text(LENGTH)
    for length in (1, 3, 14, 27):
        assert text(length) == whole[:length]


def test_what_lies_beyond_the_end_is_not_counted():
    """The step that ends a text has used, accepted and expected no more than the text has room for."""
    for length in range(1, 9):
        out = dp.generate(TARGET, [0], draft=TARGET, tree="chain:4", max_new_tokens=length, seed=1)
        assert [len(step.tokens) for step in out.trace.steps] == [step.accepted + 1 for step in out.trace.steps]
        assert out.trace.accepted == out.trace.drafted
        assert out.trace.tokens == length
        assert out.trace.expected_per_call == pytest.approx(out.trace.tokens_per_call)
        assert set(out.trace.acceptance) <= {1}


def test_a_coupling_drafts_nothing_beyond_the_end():
    """Its text does not depend on the draft, so work that cannot count is left out."""
    out = dp.generate(TARGET, [0], draft=TARGET, verify="gumbel", tree="chain:4", max_new_tokens=7, seed=1)
    assert [step.drafted for step in out.trace.steps] == [4, 1]
