"""Bounds of block verification by a drafter's large tokens, at their edges."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from draftproof import kernels
from draftproof.kernels import ChainRule, Controls, NoiseKeys, Summary
from draftproof.kernels.chain.bounds import Crest, narrow
from draftproof.kernels.lib.laws import RowLaw, SummaryPtrs
from draftproof.sampling import Sampling
from tests.support.marks import INTERPRETED

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = INTERPRETED


@triton.jit
def look(laws, weights, uniform, mass, out, NP: tl.constexpr):
    """Nodes 0 to 4 are open; p of each of two large tokens is `mass`, q is nothing."""
    n = tl.arange(0, NP)
    zeros = n.to(tl.float32) * 0
    rate, greedy = tl.zeros((), tl.float32), tl.zeros((), tl.int32) > 0
    p_law = RowLaw(zeros, zeros + mass, zeros, n * 0, rate, greedy)
    q_law = RowLaw(zeros, zeros, zeros, n * 0, rate, greedy)
    ids = n[:, None] * 0 + tl.arange(0, 2)[None, :]
    crest = Crest(ids, ids.to(tl.float32), ids.to(tl.float32))
    low = tl.zeros((), tl.int32)
    stop, low, high = narrow(n, tl.load(uniform), laws, laws, crest, p_law, q_law, tl.load(weights + n), low, low + 4)
    tl.store(out, stop)
    tl.store(out + 1, low)
    tl.store(out + 2, high)


def test_a_uniform_at_the_edge_leaves_a_node_that_is_there() -> None:
    """Just below the edge rounding may leave no node possible; the highest stands in."""
    laws = SummaryPtrs.of(None, Controls.of([Sampling()], 1, 8))
    lows = []
    for step in range(1, 200):
        weights = torch.full((8,), step / 200, dtype=torch.float64, device=DEVICE)
        edge = torch.tensor([math.nextafter(1 - step / 200, 0)], dtype=torch.float64, device=DEVICE)
        out = torch.full((3,), -7, dtype=torch.int32, device=DEVICE)
        look[(1,)](laws, weights, edge, 0.2, out, NP=8)
        stop, low, high = out.tolist()
        assert -1 <= stop <= high == 4
        assert 0 <= low <= high
        lows.append(low)
    assert 4 in lows


def test_no_scores_are_looked_up_beside_the_row_after_the_last_draft() -> None:
    """It is measured with the others where a row is greedy, but no draft was drawn beside it: there is no crest."""
    batch, nodes, size = 3, 4, 90
    controls = Controls.of([Sampling(temperature=0), Sampling(), Sampling()], nodes, size, DEVICE)
    room = torch.arange(64, dtype=torch.int32, device=DEVICE).repeat(batch * nodes)  # ids behind the crest, too
    kept = Summary.empty(batch, nodes - 1, torch.device(DEVICE), crest=True)
    crest = room[: kept.crest.numel()].view_as(kept.crest)
    target = torch.randn(batch, nodes, size, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    draft, tokens = target[:, :-1] * 0.7, torch.ones(batch, nodes - 1, dtype=torch.int64, device=DEVICE)
    law = kernels.summarise(draft, controls, tokens, crest=False)
    kept = law._replace(crest=crest, height=draft[:, :, :64].contiguous())
    space = kernels.workspace(batch, nodes, size, DEVICE)
    space.stats.height_ptr.fill_(-7.0)
    rule = torch.full((batch,), ChainRule.BLOCK, dtype=torch.int32, device=DEVICE)
    b = torch.arange(batch, device=DEVICE)
    kernels.verify(
        target, draft, tokens, controls, rule, NoiseKeys(b, b, b), drafted=kept, backend="triton", workspace=space
    )
    seen = space.stats.height_ptr.view(batch, nodes, 64)
    assert torch.equal(seen[:, :-1], target[:, :-1, :64])
    assert (seen[:, -1] == -7).all()
