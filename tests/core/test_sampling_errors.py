"""Bad input to Sampling and law(): one line that names the value and says what to do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from draftproof.errors import DraftproofError
from draftproof.sampling import Anneal, ByEntropy, Context, Sampling, law

ROWS = np.zeros((2, 4))


def message(call: Any) -> str:
    with pytest.raises(DraftproofError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("temperature", -0.1, "0 (greedy) or a positive number"),
        ("temperature", math.nan, "0 (greedy) or a positive number"),
        ("temperature", math.inf, "0 (greedy) or a positive number"),
        ("temperature", 1e-39, "at least 1e-30"),
        ("temperature", "hot", "0 (greedy) or a positive number"),
        ("temperature", None, "0 (greedy) or a positive number"),
        ("top_k", -1, "0 (off) or a positive integer"),
        ("top_k", 2.5, "0 (off) or a positive integer"),
        ("top_k", 50.0, "0 (off) or a positive integer"),
        ("top_p", 0.0, "in (0, 1]"),
        ("top_p", -0.5, "in (0, 1]"),
        ("top_p", 1.1, "in (0, 1]"),
        ("top_p", math.nan, "in (0, 1]"),
        ("min_p", -0.1, "in [0, 1]"),
        ("min_p", 1.5, "in [0, 1]"),
        ("typical_p", 0, "in (0, 1]"),
        ("typical_p", 2, "in (0, 1]"),
        ("epsilon_cutoff", 1.0, "in [0, 1)"),
        ("epsilon_cutoff", -1e-3, "in [0, 1)"),
        ("eta_cutoff", 1.0, "in [0, 1)"),
        ("repetition_penalty", 0, "a positive number"),
        ("repetition_penalty", -1.2, "a positive number"),
        ("repetition_penalty", math.inf, "a positive number"),
        ("presence_penalty", math.inf, "a finite number"),
        ("frequency_penalty", math.nan, "a finite number"),
        ("min_new_tokens", -1, "0 or a positive integer"),
        ("min_new_tokens", 1.5, "0 or a positive integer"),
        ("allowed", 5, "a list of token ids"),
        ("banned", "the", "a list of token ids"),
        ("end_tokens", [2, None], "a list of token ids"),
        ("processors", [3], "a list of functions"),
        ("processors", len, "a list of functions"),
        ("logit_bias", [1], "numbers by token id"),
        ("logit_bias", {"the": 1.0}, "numbers by token id"),
        ("logit_bias", {5: "much"}, "numbers by token id"),
    ],
)
def test_a_value_out_of_range(name: str, value: Any, remedy: str) -> None:
    text = message(lambda: Sampling(**{name: value}))
    assert text.startswith(f"{name} must be ")
    assert remedy in text
    assert repr(value) in text


@pytest.mark.parametrize(("allowed", "banned"), [([], []), ([1, 2], [2, 1, 3])])
def test_no_token_left(allowed: list[int], banned: list[int]) -> None:
    assert "no token is left" in message(lambda: Sampling(allowed=allowed, banned=banned))


@pytest.mark.parametrize("backend", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_logits(backend: type, bad: float) -> None:
    rows = ROWS.copy()
    rows[1, 2] = bad
    text = message(lambda: law(backend(rows), Sampling()))
    assert "non-finite" in text
    assert "weights and dtype" in text


@pytest.mark.parametrize("backend", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_a_row_without_a_token(backend: type) -> None:
    rows = ROWS.copy()
    rows[0, 1:] = -math.inf
    assert "no allowed token" in message(lambda: law(backend(rows - math.inf), Sampling()))
    text = message(lambda: law(backend(rows), Sampling(banned=[0])))
    assert "no allowed token" in text
    assert "`banned`" in text


def test_a_bias_or_a_processor_that_breaks_the_scores() -> None:
    contexts = [Context((), ())] * 2
    assert "`logit_bias`" in message(lambda: law(ROWS, Sampling(logit_bias={1: math.nan})))
    broken = Sampling(processors=[lambda ids, scores: scores * math.nan])
    assert "the processors" in message(lambda: law(ROWS, broken, contexts))
    empty = Sampling(processors=[lambda ids, scores: scores - math.inf])
    assert "no allowed token" in message(lambda: law(ROWS, empty, contexts))


@pytest.mark.parametrize("token", [-1, 4, 10**6])
@pytest.mark.parametrize("name", ["logit_bias", "allowed", "banned", "end_tokens"])
def test_token_ids_out_of_range(name: str, token: int) -> None:
    value = {token: 1.0} if name == "logit_bias" else [token]
    sampling = Sampling(**{name: value}, min_new_tokens=1)
    text = message(lambda: law(ROWS, sampling, [Context((), ())] * 2))
    assert text == f"{name} names token {token}, but the vocabulary has ids 0 to 3"


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(repetition_penalty=1.1),
        Sampling(presence_penalty=0.1),
        Sampling(frequency_penalty=0.1),
        Sampling(min_new_tokens=2),
        Sampling(processors=[lambda ids, scores: scores]),
        Sampling(temperature=Anneal(1, 0.5, 10)),
        Sampling(top_p=ByEntropy(0.5, 1.0)),
    ],
)
def test_controls_that_need_the_text_so_far(sampling: Sampling) -> None:
    assert "pass `contexts`" in message(lambda: law(ROWS, sampling))


def test_one_context_for_each_row() -> None:
    sampling = Sampling(repetition_penalty=1.1)
    assert message(lambda: law(ROWS, sampling, [Context((1,), ())])).startswith("2 rows of logits came with 1 contexts")


@pytest.mark.parametrize(
    ("name", "schedule", "given"),
    [
        ("temperature", Anneal(1.0, -1.0, 2), "-1.0"),
        ("top_p", ByEntropy(0.5, 1.5), "1.5"),
        ("top_p", Anneal(1.0, 0.0, 1), "0.0"),
        ("top_k", ByEntropy(5, -3), "-3.0"),
        ("min_p", lambda position, evenness: position * math.nan, "nan"),
        ("temperature", lambda position, evenness: None, "None"),
    ],
)
def test_a_schedule_that_leaves_its_range(name: str, schedule: Any, given: str) -> None:
    contexts = [Context((), (1,) * 5)] * 2  # the rows are flat, so evenness is one
    text = message(lambda: law(ROWS, Sampling(**{name: schedule}), contexts))
    assert text.startswith(f"the schedule for {name} gave {given}; it must be ")


@pytest.mark.parametrize("over", [0, -3, math.nan])
def test_anneal_over_nothing(over: float) -> None:
    assert f"over={over!r}" in message(lambda: Anneal(1.0, 0.5, over))  # type: ignore[arg-type]
