"""A real model with n-gram drafts: vLLM's own sampler writes gibberish, as its controls miss drafted rows on CPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests_vllm import tiny


@pytest.fixture(scope="module")
def served(smollm2: Path) -> Any:
    return tiny.engine(smollm2, tiny.ngram(), "token", max_num_seqs=8, max_model_len=256)


def test_ngram_drafts_of_a_real_model_pass_the_audit(served: Any) -> None:
    import draftproof
    from draftproof.audit import Transcript, audit
    from draftproof.integrations.vllm import counters

    model = draftproof.load("smollm2")
    words = "one two three four five. one two three four five. one two"
    prompt = model.tokenizer.encode(words, add_special_tokens=False)
    before = counters.read()["onehot"]
    written = tiny.write(served, 8, prompts=[list(prompt)], temperature=0.7, max_tokens=48)
    after = counters.read()["onehot"]
    assert after.accepted - before.accepted > 50
    sampling = draftproof.Sampling(temperature=0.7)
    report = audit([Transcript(tuple(p), tuple(output), sampling) for p, output in written], model)
    assert report.exact, report.verdict
