"""Rows of a call that are not equally long: what only fills them up is not computed, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import draftproof as dp
from draftproof.draft import Tree
from draftproof.models.llama import network
from draftproof.native import build
from tests.support import tiny

TEXTS = [[*range(40, 60)], [7], [9, 30, 31], [*range(80, 92)]]
CHAIN = Tree.chain(5)
LENGTHS = [5, 0, 2, 1]  # draft tokens of each row
FORK = Tree((-1, 0, 0, 1, 1, 2))
MISSING = [(5,), (2, 5), (3, 4, 5), (1, 3, 4, 5)]  # nodes of each row that were not drawn


def drafts(tree, rows):
    tokens = np.arange(tree.size)[None] + 100 + 10 * np.arange(len(TEXTS))[:, None]
    for row, absent in enumerate(rows):
        tokens[row, list(absent)] = -1
    return tokens


CASES = {
    "chain": (CHAIN, drafts(CHAIN, [range(length + 1, 6) for length in LENGTHS])),
    "tree": (FORK, drafts(FORK, MISSING)),
}


def said(model, texts, tree, tokens):
    """The logits of a draft after texts of which none was read before, and then those of the same draft again."""
    session = model.session(len(texts), 60)
    for row, text in enumerate(texts):
        session.join(row, text)
    first = session.extend(tree, tokens, range(tree.size)).clone()
    assert torch.isfinite(first).all()
    session.commit(tree, tokens, [0] * len(texts), [99] * len(texts))
    return first, session.extend(tree, tokens, range(tree.size))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mostly", [0.0, 2.0])  # whether logits of padding are computed
def test_a_row_is_read_the_same_alone_and_beside_longer_ones(dtype, case, mostly, tmp_path, monkeypatch):
    if build.compiled() is None or not build.compiled().has_floats():
        return
    monkeypatch.setattr(network, "MOSTLY", mostly)
    model, (tree, tokens) = dp.load(str(tiny.save(tmp_path)), dtype=dtype), CASES[case]
    together = said(model, TEXTS, tree, tokens)
    for row, text in enumerate(TEXTS):
        drawn = tokens[row] >= 0
        for ours, own in zip(together, said(model, [text], tree, tokens[row : row + 1]), strict=True):
            assert torch.equal(ours[row][drawn], own[0][drawn])


def test_padding_is_not_computed(tmp_path):
    """Its states stay the embeddings, in C, and those of the others are the states of each row alone."""
    if build.compiled() is None:
        return
    model = dp.load(str(tiny.save(tmp_path)), dtype="int8")
    tree, tokens = CASES["chain"]
    session = model.session(len(TEXTS), 60)
    for row, text in enumerate(TEXTS):
        session.join(row, text)
    ids, positions, slots = session._layout(tree, tokens, range(tree.size))
    assert (slots == 0).sum() == sum(5 - length for length in LENGTHS) + sum(20 - len(text) for text in TEXTS)
    masks = session._masks(tree, range(tree.size), positions, slots)
    found = []
    forward, every = model.network.blocks.forward, range(model.layers)
    model.network.blocks.forward = lambda x, call, keep: found.append((x, forward(x, call, keep=every))) or found[-1][1]
    session._call(ids, positions, slots, masks, session.cache, tree.size)
    embedded, (output, states) = found[0]
    idle = torch.as_tensor(slots == 0)
    assert torch.equal(output[idle], embedded[idle])
    assert all(torch.equal(states[layer][idle], embedded[idle]) for layer in every)
    assert not any(torch.equal(states[layer][~idle], embedded[~idle]) for layer in every[1:])
