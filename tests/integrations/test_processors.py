"""transformers' processors made controls of ours: the same law, and only where it is the same."""

from __future__ import annotations

import pytest
import torch
from transformers.generation.logits_process import (
    LogitNormalization,
    LogitsProcessorList,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from draftproof.integrations.processors import PaddedPrompt, samplings_of
from draftproof.sampling import Context, law

IDS = (3, 1, 3, 5, 3, 1)
HEAT, KEPT, MASS, SHARE = (
    TemperatureLogitsWarper(0.7),
    TopKLogitsWarper(9),
    TopPLogitsWarper(0.8),
    MinPLogitsWarper(0.1),
)
AGAIN, TWICE = RepetitionPenaltyLogitsProcessor(1.5), NoRepeatNGramLogitsProcessor(2)


@pytest.mark.parametrize(
    ("processors", "left"),
    [
        ([], 0),
        ([AGAIN, TWICE, HEAT, KEPT, MASS, SHARE, LogitNormalization()], 1),
        ([HEAT, MASS], 0),
        ([TWICE, AGAIN, HEAT], 2),  # a penalty that comes later comes later
        ([KEPT, HEAT], 1),  # so does a cut before the heat
        ([HEAT, TopHLogitsWarper(0.4), KEPT], 2),  # what is unknown stays, with all that comes before it
        ([TopKLogitsWarper(9, filter_value=-4.0)], 1),
        ([TopPLogitsWarper(0.2, min_tokens_to_keep=3)], 1),
        ([TopPLogitsWarper(0.0)], 1),
        ([RepetitionPenaltyLogitsProcessor(1.5, prompt_ignore_length=4)], 1),
    ],
)
@pytest.mark.parametrize("padding", [0, 2])
def test_the_law_is_theirs(processors, left, padding):
    scores = 3 * torch.randn(4, 12, generator=torch.Generator().manual_seed(1)).round(decimals=1)  # with ties
    padded = (7,) * padding + IDS[:4]
    sampling, guessing = samplings_of(processors, PaddedPrompt(padded, 4), sampled=True, draft_temperature=1.5)
    made = law(scores, sampling, [Context(IDS[:4], IDS[4:])] * 4)
    ids = torch.tensor([padded + IDS[4:]] * 4)
    torch.testing.assert_close(made, LogitsProcessorList(processors)(ids, scores).softmax(-1))
    assert len(sampling.processors) == left + (padding > 0 and processors[:1] == [AGAIN])
    assert guessing.temperature == pytest.approx(1.5 * sampling.temperature)
    assert guessing.processors == sampling.processors


def test_greedy_is_greedy_whatever_the_heat():
    for one in samplings_of([HEAT, KEPT], PaddedPrompt(IDS, 6), sampled=False, draft_temperature=1.5):
        assert (one.temperature, one.top_k) == (0.0, 9)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="two devices need a GPU")
def test_a_processor_gets_all_scores_on_the_prompts_device():
    """A drafter may have its scores on the CPU, and processors keep tensors on the device of their first call."""
    bias = SequenceBiasLogitsProcessor({(3,): 2.0})
    sampling, _ = samplings_of([bias], PaddedPrompt(IDS, 6), sampled=True, device=torch.device("cuda"))
    scores = torch.randn(1, 12)
    on_device = law(scores.cuda(), sampling, [Context(IDS, ())])
    torch.testing.assert_close(law(scores, sampling, [Context(IDS, ())]), on_device.cpu())
