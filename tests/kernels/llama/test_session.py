"""Sessions whose calls of few tokens the kernels do: the numbers of torch, whatever is in a call."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from draftproof import Tree
from draftproof.models.base import sessions
from draftproof.models.drafters.head import HeadModel
from draftproof.models.llama.backends import triton_ops
from draftproof.models.llama.backends.tables import KernelTables
from tests.support.heads import SHAPE, network
from tests.support.layers import model

ROOM = 60
TEXTS = [[70, 71, 72, 73, 74, 75, 76], [80, 81, 82]]


@pytest.fixture
def calls(monkeypatch):
    """How many calls the kernels did."""
    made, run = [], triton_ops.run

    def counted(*arguments):
        made.append(arguments)
        return run(*arguments)

    monkeypatch.setattr(triton_ops, "run", counted)
    return made


def opened(target, rows, drafts=(), *, by_kernels):
    """A session of the target and of its drafters, each with tables for the kernels, or with none."""
    main, drafters = sessions(target, drafts, rows, ROOM)
    heads = [one.session for one in drafters]
    for session in (main, *heads):
        blocks = session.model.network.blocks
        session.cache.allocate(blocks.shape.shared, blocks.shape.size, target.network.embed.weight)
        session.tables = KernelTables.of(blocks, session.cache, (0, len(blocks) - 1)) if by_kernels else None
        for row, text in enumerate(TEXTS[:rows]):
            session.join(row, text)
    return main, heads


def logits(session, rows, trees):
    """Of steps with these trees, in each of which the first draft token is accepted."""
    found = []
    for tree in trees:
        tokens = np.full((rows, tree.size), 83)
        found.append(torch.as_tensor(session.extend(tree, tokens, range(tree.size))))
        session.commit(tree, tokens, [min(1, tree.size - 1)] * rows, [84] * rows)
    return found


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("rows", [1, 2])
def test_logits_are_those_of_torch(family, rows, calls):
    target = model(family, seed=1)
    trees = [Tree.chain(2), Tree.chain(0), Tree.star(2), Tree.chain(3)]
    ours, theirs = (logits(opened(target, rows, by_kernels=by)[0], rows, trees) for by in (True, False))
    assert calls
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_head_drafts_what_it_drafts_by_torch(rows, calls):
    target = model("llama", seed=1)
    shape = SHAPE._replace(heads=2, size=16)  # large enough for the kernels
    drafter = HeadModel(target, network(layers=2, taps=(0, 1), shape=shape))
    found = []
    for by_kernels in (True, False):
        main, (head,) = opened(target, rows, [drafter], by_kernels=by_kernels)
        tree, tokens = Tree.chain(3), np.array([[text[-1], 83, 84, 85] for text in TEXTS[:rows]])
        for _ in range(2):
            found.append(torch.as_tensor(head.extend(tree, tokens, range(tree.size))))
            main.extend(tree, tokens, range(tree.size))
            for session in (main, head):
                session.commit(tree, tokens, [2] * rows, [86] * rows)
            tokens[:, 0] = 86
    assert calls
    for mine, other in zip(found[:2], found[2:], strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)
