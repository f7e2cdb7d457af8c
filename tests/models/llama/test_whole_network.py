"""A call of a whole network in C is that of its layers one after another, to the last bit."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from draftproof import Tree
from draftproof.models.hf import HFModel
from draftproof.models.llama.backends import native_network
from draftproof.models.llama.int8 import quantise
from draftproof.models.llama.rebuild import rebuild
from draftproof.native import build
from tests.support import tiny

TEXT = [65, 66, 67, 70, 44, 90, 12, 66, 67]
TAPS = (1, 2)  # the second is after the last norm


@pytest.fixture(params=["llama", "mistral"])
def model(request):
    """In integers; of the second, tokens see the last few others alone."""
    lean = quantise(rebuild(copy.deepcopy(tiny.network(request.param))), list(range(40, 90)))
    return HFModel(lean, tiny.tokenizer(), request.param)


def written(model, taps, whole, monkeypatch):
    """What two steps say, and the hidden states that they keep; and how many calls were whole."""
    calls, run, fits = [], native_network.run, native_network.fits
    with monkeypatch.context() as patch:
        patch.setattr(native_network, "fits", lambda *given: whole and fits(*given))
        patch.setattr(native_network, "run", lambda *given: (calls.append(given), run(*given))[1])
        session = model.session(1, 60, taps)
        session.join(0, TEXT)
        tree, tokens = Tree.chain(3), np.array([[TEXT[-1], 10, 44, -1]])
        said = [session.extend(tree, tokens, range(4))]
        session.commit(tree, tokens, [1], [77])
        said.append(session.extend(Tree.chain(0), np.array([[77]]), range(1)))
        siblings = Tree.of(2)
        said.append(session.extend(siblings, np.array([[77, 5, 6]]), range(1, 3)))
    return said, session.cache.buffers, len(calls)


@pytest.mark.parametrize("taps", [(), TAPS])
def test_it_says_and_keeps_the_same(model, taps, monkeypatch):
    if build.compiled() is None:
        return
    said, kept, calls = written(model, taps, True, monkeypatch)
    expected, expected_kept, none = written(model, taps, False, monkeypatch)
    assert (calls, none) == (2, 0)  # what siblings see is no rule
    assert all(torch.equal(one, other) for one, other in zip(said, expected, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(kept, expected_kept, strict=True))


def test_a_long_prompt_goes_through_the_layers_part_by_part(model, monkeypatch):
    if build.compiled() is None:
        return
    said, _, _ = written(model, TAPS, True, monkeypatch)
    monkeypatch.setattr(native_network, "MOST", 5 * model.network.whole.widest)
    again, _, calls = written(model, TAPS, True, monkeypatch)
    assert calls == 1
    assert all(torch.equal(one, other) for one, other in zip(said, again, strict=True))


def test_where_gradients_are_wanted_torch_sees_every_operation(model):
    if build.compiled() is None:
        return
    ids, network = torch.tensor([TEXT]), model.network
    with torch.no_grad():
        said = network(ids).logits
    assert torch.allclose(said, network(ids).logits, atol=1e-5)
