"""The same code on Fractions, NumPy and torch gives the same laws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from draftproof.draft import Draft, Tree
from draftproof.draws import Draw
from draftproof.rule import Verifier
from draftproof.theory.enumerate import drafts
from draftproof.verify import VERIFIERS
from tests.support.tables import cases, table

CASES = [
    pytest.param(v, *case, id=f"{v.name}-{case[2].name}-{case[0].parent}")
    for v in VERIFIERS.values()
    if v.select is None
    for case in cases(v)
]


def emitted(verifier: Verifier, draft: Draft) -> np.ndarray:
    """[B, N, V]: stop times next. At a node of probability zero `next` may be anything, so the product is compared."""
    stop, size = verifier.stop(draft), draft.tree.size
    nodes = [draft.tokens[:, 0] * 0 + node for node in range(size)]
    laws = [stop[:, node, None] * verifier.next(draft, nodes[node]) for node in range(size)]
    return np.stack([np.asarray(part, dtype=np.float64) for part in laws], axis=1)


@pytest.mark.parametrize(("verifier", "tree", "size", "draw"), CASES)
def test_fractions_numpy_and_torch_agree(verifier: Verifier, tree: Tree, size: int, draw: Draw) -> None:
    """Every draft of a pair of tables with zeros, as one batch; the drafter abstains here and there."""
    for seed in range(2):
        exact, _ = drafts(table(2 * seed, size), table(2 * seed + 1, size, abstain=0.3), tree, draw, ())
        p, q = exact.p.astype(np.float64), exact.q.astype(np.float64)
        wanted = emitted(verifier, Draft(tree, exact.tokens, q, p))
        tokens = torch.from_numpy(exact.tokens)
        double = Draft(tree, tokens, torch.from_numpy(q), torch.from_numpy(p))
        single = Draft(tree, tokens, double.q.float(), double.p.float())
        assert verifier.stop(single).dtype == torch.float32
        np.testing.assert_allclose(emitted(verifier, exact), wanted, rtol=0, atol=1e-12)
        np.testing.assert_allclose(emitted(verifier, double), wanted, rtol=0, atol=1e-12)
        np.testing.assert_allclose(emitted(verifier, single), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("verifier", "tree", "size", "draw"), CASES)
def test_a_row_does_not_depend_on_its_batch(verifier: Verifier, tree: Tree, size: int, draw: Draw) -> None:
    draft, _ = drafts(table(8, size), table(9, size), tree, draw, ())
    whole = emitted(verifier, draft)
    for b in range(min(len(whole), 4)):
        alone = Draft(tree, draft.tokens[b : b + 1], draft.q[b : b + 1], draft.p[b : b + 1])
        np.testing.assert_array_equal(emitted(verifier, alone), whole[b : b + 1])
