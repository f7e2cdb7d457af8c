"""Which kernels a step launches, planned from shapes and controls alone: no device and no Triton is needed."""

from __future__ import annotations

import pytest
import torch

from draftproof.kernels import Controls
from draftproof.kernels.chain.plan import LaunchPlan, Tiling
from draftproof.kernels.types import CREST
from draftproof.sampling import Sampling

PLAIN, GREEDY, FEW, MANY = Sampling(), Sampling(temperature=0), Sampling(top_k=50, top_p=0.9), Sampling(top_p=0.9)


def plan(samplings: list[Sampling], batch: int = 8, nodes: int = 6, size: int = 2000, **drafts: bool) -> LaunchPlan:
    controls = Controls.of([samplings[b % len(samplings)] for b in range(batch)], nodes, size)
    logits = torch.empty(batch, nodes, size, dtype=torch.bfloat16, device="meta")
    return LaunchPlan.of(Tiling.of(batch, nodes, size), logits, controls, **drafts)


@pytest.mark.parametrize(
    ("samplings", "shortlists", "sums", "defers"),
    [
        ([PLAIN], False, True, True),
        ([PLAIN, GREEDY], False, True, False),
        ([GREEDY], False, False, False),
        ([FEW], True, False, False),
        ([FEW, GREEDY], True, False, False),
        ([FEW, PLAIN], False, True, False),
        ([MANY], False, True, False),
    ],
    ids=["plain", "plain, greedy", "greedy", "few", "few, greedy", "few, plain", "many"],
)
def test_controls_choose_the_kernels(samplings: list[Sampling], shortlists: bool, sums: bool, defers: bool) -> None:
    planned = plan(samplings, drafted=True)
    assert (planned.shortlists, planned.sums, planned.defer_last) == (shortlists, sums, defers)
    assert planned.measured == planned.nodes - defers
    assert not plan(samplings).defer_last  # nothing is drafted: the only row is needed


def test_a_few_hundred_short_rows_are_truncated_where_they_are_read() -> None:
    for batch, fused in ((8, False), (64, True), (256, False)):
        assert plan([FEW], batch).fuse_truncation == fused
        assert not plan([MANY], batch).fuse_truncation
    assert plan([FEW], 64).spans == 1


def test_the_worklist_is_dense_with_few_rows() -> None:
    assert plan([PLAIN], 8).dense
    assert not plan([PLAIN], 64).dense


def test_the_crest_bounds_block_verification_where_rows_are_summed() -> None:
    assert plan([PLAIN], drafted=True, draft_crest=True).uses_crest
    assert not plan([FEW], drafted=True, draft_crest=True).uses_crest
    for size in (40, 2000, 32_000, 151_936):
        planned = plan([PLAIN], size=size)
        assert 1 <= planned.crest_per_span * min(planned.spans, CREST) <= CREST
