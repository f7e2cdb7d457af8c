"""The law of the node at which a chain stops: the kernel's is that of the rules, for every control and mixture."""

from __future__ import annotations

import pytest
import torch

import draftproof as dp
from draftproof.kernels import Controls, summarise
from draftproof.kernels.acceptance import stop_law
from draftproof.kernels.types import ChainRule
from draftproof.sampling import Context

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, DRAFTS = 6, 4
SAMPLINGS = {
    "temperature": dp.Sampling(temperature=0.8),
    "greedy": dp.Sampling(temperature=0),
    "truncated": dp.Sampling(top_k=20, top_p=0.9),
    "min_p": dp.Sampling(min_p=0.05),
    "penalties": dp.Sampling(repetition_penalty=1.3, presence_penalty=0.2),
    "masked": dp.Sampling(banned=(3, 4, 5), logit_bias={7: 2.0}),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes with NumPy, which warns of infinities
@pytest.mark.parametrize("size", [37, 9001])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_kernels_law_is_that_of_the_rules(sampling, size):
    if DEVICE == "cpu" and size > 1000 and sampling not in ("temperature", "truncated"):
        size = 1271  # the interpreter is slow
    torch.manual_seed(size)
    asked = SAMPLINGS[sampling]
    contexts = [Context((1, 2, 3), (4, 5))] * BATCH if asked.reads_history else None
    controls = Controls.of([asked] * BATCH, DRAFTS + 1, size, DEVICE, contexts)
    target = torch.randn(BATCH, DRAFTS + 1, size, device=DEVICE).bfloat16()
    draft = (target[:, :-1] + 0.7 * torch.randn(BATCH, DRAFTS, size, device=DEVICE)).bfloat16()
    tokens = torch.multinomial(draft.float().softmax(-1).flatten(0, 1), 1).view(BATCH, DRAFTS)
    tokens[1, 2:], tokens[2], tokens[3, 3] = -1, -1, -1  # drafts of every length
    rule = torch.tensor([0, 1, 1, 1, 2, 1], dtype=torch.int32, device=DEVICE)
    laws = {"laws": summarise(target, controls, tokens), "drafted": summarise(draft, controls, tokens)}
    kernel = stop_law(target, draft, tokens, controls, rule, **laws)
    torch.testing.assert_close(kernel.sum(1), torch.ones(BATCH, device=DEVICE))
    torch.testing.assert_close(kernel, stop_law(target, draft, tokens, controls, rule), atol=2e-5, rtol=0)
    assert set(rule.tolist()) == {*ChainRule}
