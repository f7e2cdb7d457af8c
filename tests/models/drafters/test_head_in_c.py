"""The head in C: its laws under masks and at temperature zero are those that its scores have in Python."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import draftproof as dp
from draftproof import Tree
from draftproof.models.base import sessions
from draftproof.models.drafters import head as head_module
from draftproof.models.drafters.head import HeadModel
from draftproof.models.hf import HFModel
from draftproof.models.llama.backends.linear import PackedLinear
from draftproof.models.llama.int8 import Int8Linear, quantise
from draftproof.models.llama.rebuild import pack, rebuild
from tests.support import heads, tiny

TEXT = [65, 66, 67, 70]


def head(precision):
    lean = rebuild(copy.deepcopy(tiny.network("llama")))
    lean = pack(lean) if precision == "float32" else quantise(lean, list(range(40, 90)))
    return HeadModel(HFModel(lean, tiny.tokenizer()), heads.network(layers=2))


@pytest.mark.parametrize("temperature", [0.7, 0.0])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_the_law_after_a_path_is_that_of_the_allowed_tokens(precision, temperature):
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
        found = [drafter.session.law_after(path[:n], temperature, some[n % 4]) for n in lengths]
        drafter.forget()
        tokens = np.array([[TEXT[-1], *path]])
        scores = np.asarray(drafter.session.extend_reduced(Tree.chain(4), tokens, range(5)), dtype=np.float64)[0]
        for n, law in zip(lengths, found, strict=True):
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


@pytest.mark.parametrize("grammar", [None, dp.Grammar.regex("(ab|cd|[d-z]x)*!")])
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
