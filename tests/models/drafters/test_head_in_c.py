"""The head in C: its entries are those of its layers to the last bit, its laws those that its scores have in Python."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import draftproof as dp
from draftproof import Tree
from draftproof.engine.tuning import Auto
from draftproof.models.base import sessions
from draftproof.models.drafters import head as head_module
from draftproof.models.drafters.head import HeadModel
from draftproof.models.hf import HFModel
from draftproof.models.llama.backends import native_head
from draftproof.models.llama.backends.linear import PackedLinear
from draftproof.models.llama.int8 import Int8Linear, quantise
from draftproof.models.llama.rebuild import pack, rebuild
from tests.support import heads, tiny

TEXT = [65, 66, 67, 70]


def head(precision):
    lean = rebuild(copy.deepcopy(tiny.network("llama")))
    lean = pack(lean) if precision == "float32" else quantise(lean, list(range(40, 90)))
    network = heads.network(layers=2)
    with torch.no_grad():
        network.tap_scale.mul_(1 + torch.rand_like(network.tap_scale))  # so that no tap is scaled as another
    return HeadModel(HFModel(lean, tiny.tokenizer()), network)


@pytest.fixture(params=["float32", "int8"])
def in_one_precision(request, monkeypatch):
    """A head whose own weights are in this precision too: beside a target in float32 they are integers otherwise."""
    if request.param == "float32":
        monkeypatch.setattr(head_module, "in_c", lambda: False)
    return head(request.param)


def entries_of(model, row, start, count, most):
    """The state after the last of `count` entries from `start` on, and the cache; computed `most` entries at a time."""
    text = [(17 * i + 3) % tiny.VOCABULARY for i in range(start + count + 1)]
    target, (drafter,) = sessions(model.target, [model], 2, 60)
    for one in (target, drafter.session):
        one.join(0, text)
        one.join(1, text)
    target.read(2)
    for first in (*range(0, start, most), *range(start, start + count, most)):
        stop = min(first + most, start if first < start else start + count)
        state = drafter.session._straight(row, first, stop - 1)
    return [state, *drafter.session.cache.buffers]


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("start", [0, 7])
@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_entries_made_in_one_call_are_those_of_the_layers_to_the_last_bit(in_one_precision, count, start, row):
    """The layers read a few at a time: of many tokens in float32, torch computes norms in its own way."""
    model = in_one_precision
    if model.in_c is None:
        return
    here = entries_of(model, row, start, count, most=count)
    model.in_c = None
    there = entries_of(model, row, start, count, most=20)
    assert all(torch.equal(one, other) for one, other in zip(here, there, strict=True))
    assert bool(here[1][row].any())


def test_a_long_text_is_read_part_by_part(in_one_precision, monkeypatch):
    model = in_one_precision
    if model.in_c is None:
        return
    here = entries_of(model, 0, 3, 40, most=40)
    monkeypatch.setattr(native_head, "MOST", 6 * model.in_c.widest)
    there = entries_of(model, 0, 3, 40, most=40)
    assert all(torch.equal(one, other) for one, other in zip(here, there, strict=True))


@pytest.mark.parametrize("temperature", [0.7, 0.0])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_what_follows_a_path_is_drawn_from_the_law_of_the_allowed_tokens(precision, temperature):
    """One token alone, some of one group of outputs, a few here and there, all of them; several tokens read at once."""
    model, chance = head(precision), np.random.default_rng(2)
    if model.in_c is None:
        return
    path = [10, 44, 2, 8]
    some = [np.arange(129) == 100, np.arange(129) < 5, chance.random(129) < 0.05, np.ones(129, dtype=bool)]
    for lengths in ([0, 1, 2, 3, 4], [0, 3, 4], [2]):
        target, (drafter,) = sessions(model.target, [model], 1, 60)
        for one in (target, drafter.session):
            one.join(0, TEXT)
        u = chance.random(5)
        found = [drafter.session.draw_after(path[:n], temperature, u[n], some[n % 4]) for n in lengths]
        assert drafter.session.draw_after(path[: lengths[-1]], temperature, 0.5, some[0] & False)[0] == -1
        drafter.forget()
        tokens = np.array([[TEXT[-1], *path]])
        scores = np.asarray(drafter.session.extend_reduced(Tree.chain(4), tokens, range(5)), dtype=np.float64)[0]
        for n, (place, law) in zip(lengths, found, strict=True):
            assert place == dp.law.sample(law[None], np.array([u[n]]))[0]
            masked = np.where(some[n % 4], scores[n], -np.inf)
            truth = dp.sampling.law(masked[None], dp.Sampling(temperature=temperature))[0]
            np.testing.assert_allclose(law, truth, atol=1e-6)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_head_is_in_integers_beside_a_target_in_float32_where_there_is_a_compiler(compiled, monkeypatch):
    """Its laws are then nearly those that it has in float32, which it keeps without a compiler."""
    monkeypatch.setattr(head_module, "in_c", lambda: compiled)
    model = head("float32")
    assert isinstance(model.output, Int8Linear if compiled else PackedLinear)
    monkeypatch.setattr(head_module, "in_c", lambda: False)
    laws = []
    for one in (model, head("float32")):
        target, (drafter,) = sessions(one.target, [one], 1, 60)
        for session in (target, drafter.session):
            session.join(0, TEXT)
        scores = drafter.session.extend_reduced(Tree.chain(3), np.array([[TEXT[-1], 10, 44, 2]]), range(4))
        laws.append(torch.as_tensor(scores).softmax(dim=-1))
    apart = (laws[0] - laws[1]).abs().sum(dim=-1) / 2
    assert apart.max() < 0.02
    assert bool(apart.max() > 0) == compiled


GRAMMARS = [None, dp.Grammar.regex("(ab|cd|[d-z]x)*!")]


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_means_the_same_text_whether_or_not_the_head_is_in_c(in_one_precision, seed, grammar):
    model, texts = in_one_precision, []
    in_c = model.in_c
    for model.in_c in (in_c, None):
        how = {"sampling": dp.Sampling(temperature=0.8, grammar=grammar), "max_new_tokens": 30, "seed": seed}
        made = dp.generate(model.target, TEXT, draft=model, tree="chain:3", **how)
        assert not made.trace.failures
        texts.append([(step.tokens, step.drafted) for step in made.trace.steps])
    assert texts[0] == texts[1]


class Ending(Auto):
    """Drafts that end where their drafter is unsure, and nowhere else before the sixth token."""

    def __init__(self):
        super().__init__("chain", hope=0.65, least=0.4)
        self.tree = Tree.chain(6)

    def expect(self, rows, joining):
        pass

    def learn(self, report):
        pass


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_draft_ends_where_its_next_token_is_unlikely_to_be_reached(in_one_precision, grammar):
    """In C as elsewhere, and in a batch as alone."""
    model, texts = in_one_precision, []
    in_c, sharp = model.in_c, dp.Sampling(temperature=0.15, grammar=grammar)
    for model.in_c in (in_c, None):
        how = {"sampling": dp.Sampling(grammar=grammar), "draft_sampling": sharp, "max_new_tokens": 30, "seed": 1}
        made = dp.generate(model.target, TEXT, draft=model, tree=Ending(), **how)
        assert not made.trace.failures
        texts.append([(step.tokens, step.drafted) for step in made.trace.steps])
    engine = dp.Engine(model.target, draft=model, tree=Ending(), rows=2)
    first, _ = [engine.add_request(TEXT[i:], **how) for i in range(2)]
    while not engine.is_finished:
        engine.step()
    texts.append([(step.tokens, step.drafted) for step in first.output.trace.steps])
    assert texts[0] == texts[1] == texts[2]
    assert len({drafted for _, drafted in texts[0]}) > 3


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_greedy_texts_do_not_depend_on_who_drafts_them(precision, grammar):
    model = head(precision)
    how = {"sampling": dp.Sampling(temperature=0, grammar=grammar), "max_new_tokens": 30, "seed": 1}
    plain = dp.generate(model.target, TEXT, draft=None, **how)
    drafted, in_c = [], model.in_c
    for model.in_c in (in_c, None):
        made = dp.generate(model.target, TEXT, draft=model, tree="chain:3", **how)
        drafted.append([(step.tokens, step.drafted) for step in made.trace.steps])
        assert made.tokens == plain.tokens
        assert not made.trace.failures
    assert drafted[0] == drafted[1]
