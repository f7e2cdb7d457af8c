"""Rows that lie anywhere in memory give the outcomes of the same rows side by side, in kernels and in torch."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

import draftproof as dp
from draftproof import kernels
from draftproof.errors import DraftproofError
from draftproof.kernels import ChainRule, Controls, NoiseKeys, Ragged

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DRAFTS, SIZE = 3, 301
LENGTHS = (3, 0, 1, 2, 3, 2)  # draft tokens of each sequence
BATCH = len(LENGTHS)
RULES = [ChainRule.BLOCK, ChainRule.TOKEN, ChainRule.BLOCK, ChainRule.ONEHOT, ChainRule.TOKEN, ChainRule.BLOCK]
SAMPLINGS = {
    "plain": dp.Sampling(temperature=0.8),
    "greedy": dp.Sampling(temperature=0),
    "few": dp.Sampling(top_k=20, top_p=0.9),
    "many": dp.Sampling(top_p=0.9),
}

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of infinities in the interpreter


class Step(NamedTuple):
    """The same step twice: flat rows as serving engines have them, and rows side by side."""

    target: Ragged
    draft: Ragged
    dense_target: torch.Tensor
    dense_draft: torch.Tensor
    tokens: torch.Tensor


def step(dtype: torch.dtype = torch.float32) -> Step:
    torch.manual_seed(3)
    flat = torch.randn(sum(LENGTHS) + BATCH, SIZE + 5, device=DEVICE).to(dtype)[:, :SIZE]  # a padded vocabulary
    first = torch.tensor([sum(LENGTHS[:b]) + b for b in range(BATCH)], device=DEVICE)
    slots = torch.randn(BATCH + 4, DRAFTS, SIZE, device=DEVICE).to(dtype)
    slot = torch.tensor([7, 0, 3, 9, 1, 4], device=DEVICE)
    target = Ragged(flat, first, DRAFTS + 1)
    draft = Ragged(slots.flatten(0, 1), slot * DRAFTS, DRAFTS)
    law = slots[slot].float().softmax(-1).flatten(0, 1)
    tokens = torch.multinomial(law, 1).view(BATCH, DRAFTS)
    tokens[torch.arange(DRAFTS, device=DEVICE) >= torch.tensor(LENGTHS, device=DEVICE)[:, None]] = -1
    return Step(target, draft, target.gathered().contiguous(), slots[slot], tokens)


def settings(sampling: str) -> tuple[Controls, torch.Tensor, NoiseKeys]:
    controls = Controls.of([SAMPLINGS[sampling]] * BATCH, DRAFTS + 1, SIZE, DEVICE)
    b = torch.arange(BATCH, device=DEVICE)
    return controls, torch.tensor(RULES, dtype=torch.int32, device=DEVICE), NoiseKeys(b + 5, b, b)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_outcomes_do_not_depend_on_where_rows_lie(sampling: str, backend: str) -> None:
    data = step(torch.bfloat16)
    controls, rule, noise = settings(sampling)
    ragged = kernels.verify(data.target, data.draft, data.tokens, controls, rule, noise, backend=backend)
    dense = kernels.verify(data.dense_target, data.dense_draft, data.tokens, controls, rule, noise, backend=backend)
    assert torch.equal(ragged.tokens, dense.tokens)
    assert torch.equal(ragged.accepted, dense.accepted)
    assert torch.equal(ragged.fault, dense.fault)
    assert (ragged.accepted <= torch.tensor(LENGTHS, device=DEVICE)).all()


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_kernels_reach_is_that_of_the_rules(sampling: str) -> None:
    data = step()
    controls, rule, noise = settings(sampling)
    asked = (data.tokens, controls, rule, noise)
    kernel = kernels.verify(data.target, data.draft, *asked, expected=True, backend="triton").reach
    right = kernels.verify(data.dense_target, data.dense_draft, *asked, expected=True, backend="torch").reach
    torch.testing.assert_close(kernel, right, atol=2e-5, rtol=0)


def test_reach_needs_no_draft_rows_for_the_onehot_rule() -> None:
    data = step()
    controls, rule, noise = settings("plain")
    rule = torch.full_like(rule, ChainRule.ONEHOT)
    kernel, right = (
        kernels.verify(data.target, None, data.tokens, controls, rule, noise, expected=True, backend=backend).reach
        for backend in ("triton", "torch")
    )
    torch.testing.assert_close(kernel, right, atol=2e-5, rtol=0)
    p = data.dense_target[0, 0].div(0.8).softmax(-1)[data.tokens[0, 0]]
    torch.testing.assert_close(kernel[0, 0], p, atol=2e-5, rtol=0)


def test_reach_is_the_mean_of_what_is_accepted() -> None:
    """Over many drafts and draws both have the same mean, for a rule that looks ahead, too."""
    data, times = step(), 4000
    target, draft = data.dense_target[:1].repeat(times, 1, 1), data.dense_draft[:1].repeat(times, 1, 1)
    controls = Controls.of([SAMPLINGS["plain"]] * times, DRAFTS + 1, SIZE, DEVICE)
    law = draft[0].div(0.8).softmax(-1)
    tokens = torch.multinomial(law, times, replacement=True).T.contiguous()
    b = torch.arange(times, device=DEVICE)
    rule = torch.full((times,), ChainRule.BLOCK, dtype=torch.int32, device=DEVICE)
    noise = NoiseKeys(b, b * 0, b * 0)
    out = kernels.verify(target, draft, tokens, controls, rule, noise, expected=True, backend="torch")
    expected = out.reach.sum(1)
    error = (out.accepted - expected).double()
    assert abs(error.mean()) < 5 * error.std() / times**0.5
    assert expected.std() < out.accepted.float().std()


def test_first_rows_are_checked() -> None:
    data = step()
    controls, rule, noise = settings("plain")
    wrong = data.target._replace(first=data.target.first.int())
    with pytest.raises(DraftproofError, match="first must be"):
        kernels.verify(wrong, data.draft, data.tokens, controls, rule, noise)
