"""Our road from logits to a law beside transformers' own processors: the same tokens stay, with the same mass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation import logits_process as hf

from draftproof.sampling import Context, Sampling, law

ROUNDING = 1e-5  # float32 softmax and cumulated sums over 50,257 tokens are off by some 1e-6


def logits(kind: str, size: int) -> torch.Tensor:
    """Random rows; three of the kinds are full of exact ties, one has tokens that are already out."""
    generator = torch.Generator().manual_seed(size)
    rows = torch.randn(4 if size > 1000 else 60, size, generator=generator) * 3
    match kind:
        case "rounded":
            return rows.round()
        case "two values":
            return rows.sign()
        case "bfloat16":
            return rows.bfloat16()
        case "minus infinity":
            return torch.where(torch.rand(rows.shape, generator=generator).argsort(dim=1) < size // 2, -math.inf, rows)
        case _:
            return rows


KINDS = ["plain", "rounded", "two values", "bfloat16", "minus infinity"]
SIZES = [2, 7, 1000, 50257]


def theirs(rows: torch.Tensor, processors: Sequence[Any], ids: torch.Tensor | None = None) -> torch.Tensor:
    """Scores after transformers' processors, in float64."""
    scores = rows.float()
    for processor in processors:
        scores = processor(torch.zeros(len(rows), 1, dtype=torch.long) if ids is None else ids, scores)
    return scores.double()


def assert_same(ours: torch.Tensor, scores: torch.Tensor) -> None:
    """Same support; same values as the softmax of their scores, taken in float64 because torch's float32 softmax is
    off by up to 6e-6 at 50,257 tokens."""
    assert torch.equal(ours > 0, (scores.softmax(-1) > 1e-44))
    assert torch.max(abs(ours - scores.softmax(-1))) < 1e-6


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "value"), [("temperature", 0.7), ("temperature", 1.9), ("top_k", 1), ("top_k", 40)])
def test_controls_without_rounding(name: str, value: float, kind: str, size: int) -> None:
    """Temperature and top-k compare scores with scores: nothing can round differently, so supports are equal."""
    rows = logits(kind, size)
    warper = {"temperature": hf.TemperatureLogitsWarper, "top_k": hf.TopKLogitsWarper}[name](value)
    assert_same(law(rows, Sampling(**{name: value})), theirs(rows, [warper]))


WARPERS: dict[str, Callable[[float], Any]] = {
    "top_p": hf.TopPLogitsWarper,
    "min_p": hf.MinPLogitsWarper,
    "typical_p": hf.TypicalLogitsWarper,
    "epsilon_cutoff": hf.EpsilonLogitsWarper,
    "eta_cutoff": hf.EtaLogitsWarper,
}
VALUES = [
    ("top_p", 0.8),
    ("top_p", 0.13),
    ("min_p", 0.1),
    ("min_p", 0.6),
    ("typical_p", 0.7),
    ("typical_p", 0.2),
    ("epsilon_cutoff", 0.02),
    ("epsilon_cutoff", 3e-4),
    ("eta_cutoff", 0.02),
    ("eta_cutoff", 3e-4),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "value"), VALUES)
def test_controls_that_cut_a_law(name: str, value: float, kind: str, size: int) -> None:
    """The cut compares rounded probabilities. A row may differ only at tokens within ROUNDING of it: their support lies
    between ours for a slightly stricter and a slightly looser value. All other rows, ties included, are equal."""
    rows = logits(kind, size)
    scores = theirs(rows, [WARPERS[name](value)])
    ours = law(rows, Sampling(**{name: value}))
    equal = torch.all((ours > 0) == (scores > -math.inf), dim=1)
    assert_same(ours[equal], scores[equal])
    step = ROUNDING if name in ("top_p", "typical_p") else ROUNDING * value
    looser = 1 if name in ("top_p", "typical_p") else -1
    inner = law(rows, Sampling(**{name: value - looser * step})) > 0
    outer = law(rows, Sampling(**{name: value + looser * step})) > 0
    kept = scores > -math.inf
    assert torch.all(inner <= kept)
    assert torch.all(kept <= outer)
    if size <= 1000:  # in a flat row of 50,257 some token is always within ROUNDING of the cut; here hardly ever
        assert int(torch.sum(~equal)) <= len(rows) // 20


@pytest.mark.parametrize(
    ("name", "value", "masses", "kept"),
    [
        ("top_p", 0.75, [0.25, 0.25, 0.25, 0.25], 3),
        ("top_p", 0.5, [0.25, 0.125, 0.5, 0.125], 1),
        ("min_p", 0.5, [0.25, 0.125, 0.5, 0.125], 2),
        ("typical_p", 0.75, [0.25, 0.125, 0.5, 0.125], 2),
        ("epsilon_cutoff", 0.25, [0.25, 0.125, 0.5, 0.125], 2),
        ("epsilon_cutoff", 0.75, [0.25, 0.125, 0.5, 0.125], 1),  # the likeliest always stays
        ("eta_cutoff", 0.125, [0.25, 0.125, 0.5, 0.125], 4),  # entropy lowers the floor to 0.105
    ],
)
def test_a_cut_exactly_at_a_tokens_mass(name: str, value: float, masses: list[float], kept: int) -> None:
    """Powers of two, so nothing rounds: whether the token at the cut stays is a matter of < and <=."""
    rows = torch.tensor([masses]).log()
    ours = law(rows, Sampling(**{name: value}))
    assert_same(ours, theirs(rows, [WARPERS[name](value)]))
    assert int(torch.sum(ours > 0)) == kept


def contexts_for(prompt: torch.Tensor, output: torch.Tensor) -> list[Context]:
    return [Context(tuple(a.tolist()), tuple(b.tolist())) for a, b in zip(prompt, output, strict=True)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_controls_that_edit_scores(kind: str, size: int) -> None:
    """Penalty, bias, masks and the minimum length, each alone and against its own processor."""
    rows = logits(kind, size)
    rows[:, 0] = 1.0  # token 0 stays possible whatever is masked
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(size, (len(rows), 9), generator=generator)
    output = torch.randint(size, (len(rows), 2), generator=generator)
    ids, contexts = torch.cat([prompt, output], dim=1), contexts_for(prompt, output)
    some, end = [0, size // 2, size - 1], size - 1
    for sampling, processor in [
        (Sampling(repetition_penalty=1.3), hf.RepetitionPenaltyLogitsProcessor(1.3)),
        (Sampling(repetition_penalty=0.8), hf.RepetitionPenaltyLogitsProcessor(0.8)),
        (Sampling(logit_bias={0: 2.5, end: -1.5}), hf.SequenceBiasLogitsProcessor({(0,): 2.5, (end,): -1.5})),
        (Sampling(banned=[end]), hf.SuppressTokensLogitsProcessor([end])),
        (Sampling(allowed=some), hf.PrefixConstrainedLogitsProcessor(lambda b, sent: some, 1)),
        (
            Sampling(min_new_tokens=3, end_tokens=[end]),
            hf.MinNewTokensLengthLogitsProcessor(9, 3, [end]),
        ),
        (
            Sampling(min_new_tokens=2, end_tokens=[end]),
            hf.MinNewTokensLengthLogitsProcessor(9, 2, [end]),
        ),
    ]:
        assert_same(law(rows, sampling, contexts), theirs(rows, [processor], ids))


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    """A tiny model with random weights: real logits without a download."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=300, num_key_value_heads=2, bos_token_id=1, eos_token_id=2, pad_token_id=0, **sizes)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(20)  # random heads are nearly flat; text is not
    return model


ALL_OF_THEM = {
    "temperature": 1.3,
    "top_k": 60,
    "top_p": 0.95,
    "min_p": 0.01,
    "typical_p": 0.9,
    "epsilon_cutoff": 2e-3,
    "eta_cutoff": 3e-3,
    "repetition_penalty": 1.2,
    "min_new_tokens": 3,
}
COMBINATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "usual": {"temperature": 0.7, "top_k": 50, "top_p": 0.9, "repetition_penalty": 1.1},
    "all": ALL_OF_THEM,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", COMBINATIONS)
def test_generate_has_our_law_at_every_step(llama: LlamaForCausalLM, name: str, dtype: torch.dtype) -> None:
    """transformers generates with all controls at once; the scores it samples from are our law of its raw logits."""
    controls = COMBINATIONS[name]
    allowed = list(range(2, 200))
    prompt = torch.tensor([[5, 9, 9, 17], [8, 40, 9, 2]])
    config = GenerationConfig(
        do_sample=True,
        max_new_tokens=6,
        sequence_bias={(7,): 4.0, (30,): -3.0},
        suppress_tokens=[11, 12],
        eos_token_id=2,
        pad_token_id=0,
        output_scores=True,
        output_logits=True,
        return_dict_in_generate=True,
        **{"temperature": 1.0, "top_k": 0, "top_p": 1.0} | controls,
    )
    torch.manual_seed(3)
    result = llama.to(dtype).generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        generation_config=config,
        prefix_allowed_tokens_fn=lambda b, sent: allowed,
        logits_processor=hf.LogitsProcessorList([hf.NoRepeatNGramLogitsProcessor(2)]),
    )
    sampling = Sampling(
        logit_bias={7: 4.0, 30: -3.0},
        banned=[11, 12],
        allowed=allowed,
        end_tokens=[2],
        processors=[hf.NoRepeatNGramLogitsProcessor(2)],
        **controls,
    )
    assert len(result.scores) >= 3
    for step, (raw, scores) in enumerate(zip(result.logits, result.scores, strict=True)):
        output = result.sequences[:, prompt.shape[1] : prompt.shape[1] + step]
        ours = law(raw, sampling, contexts_for(prompt, output))
        assert_same(ours, scores.double())
    llama.to(torch.float32)


def test_any_processor_sees_its_own_rows_history() -> None:
    """Histories of different lengths, a transformers processor and a plain function."""
    seen: list[list[int]] = []

    def favour_the_last_token(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(ids[0].tolist())
        return scores.index_add(1, ids[0, -1:], torch.ones(1, 1))

    rows = logits("plain", 7)[:3]
    contexts = [Context((3, 4, 3), ()), Context((1,), (2, 1)), Context((6, 5), (6,))]
    sampling = Sampling(processors=[hf.NoRepeatNGramLogitsProcessor(2), favour_the_last_token])
    ours = law(rows, sampling, contexts)
    assert seen == [[3, 4, 3], [1, 2, 1], [6, 5, 6]]
    for r, (banned, last) in enumerate([(4, 3), (2, 1), (5, 6)]):  # the token that would repeat a pair
        scores = rows[r].double().clone()
        scores[banned] = -math.inf
        scores[last] += 1
        assert_same(ours[r : r + 1], scores[None])


def test_numpy_float64_and_torch_agree() -> None:
    rows = logits("plain", 50)
    contexts = [Context((1, 2, 3), (3, 3, r % 50)) for r in range(len(rows))]
    sampling = Sampling(
        presence_penalty=0.3,
        frequency_penalty=0.2,
        logit_bias={4: 1.0},
        end_tokens=[2],
        banned=[9],
        **ALL_OF_THEM,
    )
    double = law(rows.double().numpy(), sampling, contexts)
    assert double.dtype == np.float64
    np.testing.assert_allclose(law(rows.double(), sampling, contexts).numpy(), double, rtol=0, atol=1e-12)
    np.testing.assert_allclose(law(rows, sampling, contexts).numpy(), double, rtol=0, atol=1e-6)
