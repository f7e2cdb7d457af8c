"""Texts of the real engine on the CPU: audited, counted, seeded, and mixed in one batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests_vllm import reads, tiny

TOKENS = 20_000  # that are audited of each way of drafting and verifying


def spec(models: Path, drafts: str) -> dict[str, Any]:
    return tiny.ngram() if drafts == "ngram" else tiny.drafter(models / "drafter")


# n-grams last: once numba is imported, vLLM cannot make another engine in the same process
@pytest.fixture(scope="module", params=[("model", "token"), ("model", "block"), ("ngram", "block")], ids="-".join)
def served(request: pytest.FixtureRequest, models: Path) -> Any:
    """An engine for each way of drafting and verifying."""
    drafts, verify = request.param
    return tiny.engine(models / "target", spec(models, drafts), verify), drafts, verify


def metrics(llm: Any) -> dict[str, Any]:
    """vLLM's own numbers."""
    return {each.name: each.value for each in llm.get_metrics() if hasattr(each, "value")}


def test_twenty_thousand_tokens_pass_the_audit_and_are_counted(served: Any, models: Path) -> None:
    from draftproof.integrations.vllm import counters

    llm, drafts, verify = served
    rule = "onehot" if drafts == "ngram" else verify
    before, vllm_before = counters.read()[rule], metrics(llm)
    written = tiny.write(llm, TOKENS // 40 + 1, temperature=0.8)
    report = tiny.audited(
        models / "target", written, None if drafts == "ngram" else models / "drafter", temperature=0.8
    )
    assert sum(len(output) for _, output in written) >= TOKENS
    assert report.exact, report.verdict
    after, vllm_after = counters.read()[rule], metrics(llm)
    for ours, theirs in (("drafted", "draft_tokens"), ("accepted", "accepted_tokens"), ("steps", "drafts")):
        name = f"vllm:spec_decode_num_{theirs}"
        assert getattr(after, ours) - getattr(before, ours) == vllm_after[name] - vllm_before[name]
    accepted, expected = after.accepted - before.accepted, after.expected - before.expected
    assert abs(accepted - expected) < 6 * (after.drafted - before.drafted) ** 0.5
    assert after.faulty == before.faulty
    assert accepted > 1000  # or else nothing was tested


CONTROLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # vLLM's settings, and ours where they differ
    "top_k": ({"temperature": 0.9, "top_k": 6}, {}),
    "top_p": ({"temperature": 0.9, "top_p": 0.8}, {}),
    "min_p": ({"temperature": 0.9, "min_p": 0.1}, {}),
    "logit_bias": ({"temperature": 0.9, "logit_bias": {3: 2.0, 9: -1.5}}, {}),
    "bias and penalties": (
        {
            "temperature": 0.9, "logit_bias": {3: 2.0, 9: -1.5}, "repetition_penalty": 1.3, "presence_penalty": 0.3,
            "frequency_penalty": 0.2,
        },
        {},
    ),
    "allowed": (
        {"temperature": 0.9, "allowed_token_ids": list(range(0, 32, 2))},
        {"temperature": 0.9, "allowed": list(range(0, 32, 2))},
    ),
}  # fmt: skip


@pytest.mark.parametrize("control", CONTROLS)
def test_controls_apply_to_drafted_rows_as_without_drafts(served: Any, models: Path, control: str) -> None:
    llm, _drafts, _ = served
    theirs, ours = CONTROLS[control]
    written = tiny.write(llm, 100, **theirs)
    report = tiny.audited(models / "target", written, **(ours or theirs))
    assert report.exact, report.verdict


def test_a_seed_gives_the_same_text_in_any_company(served: Any) -> None:
    llm, _, _ = served
    alone = tiny.write(llm, 1, temperature=1.0, seed=11)[0]
    assert tiny.write(llm, 1, temperature=1.0, seed=11)[0] == alone
    assert tiny.write(llm, 1, temperature=1.0, seed=12)[0] != alone
    assert company(llm, seed=11) == alone[1]


def company(llm: Any, seed: int) -> list[int]:
    """A seeded text beside greedy, unseeded and truncated ones, which come and go."""
    from vllm import SamplingParams

    others = [
        SamplingParams(max_tokens=n, detokenize=False, ignore_eos=True, temperature=t, top_k=k, extra_args=extra)
        for n, t, k, extra in [
            (5, 0.0, 0, None), (9, 1.0, 3, None), (30, 0.7, 0, {"draftproof": {"verify": "token"}}),
            (3, 1.3, 0, {"draftproof": {"verify": "block"}}),
        ]
    ]  # fmt: skip
    mine = SamplingParams(max_tokens=40, detokenize=False, ignore_eos=True, temperature=1.0, seed=seed)
    params = [others[0], others[1], mine, others[2], others[3]]
    prompts = [{"prompt_token_ids": tiny.PROMPTS[i]} for i in (1, 2, 0, 3, 1)]
    return list(llm.generate(prompts, params, use_tqdm=False)[2].outputs[0].token_ids)


def test_a_step_waits_for_the_device_no_more_than_vllm_does(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.sample.rejection_sampler import RejectionSampler
    from vllm.v1.sample.sampler import Sampler

    from draftproof import kernels
    from draftproof.integrations.vllm import runner_v1

    calls: list[str] = []
    reads.barred(monkeypatch, runner_v1, "forward", calls)
    reads.allowed(monkeypatch, kernels, "verify")
    reads.allowed(monkeypatch, Sampler, "forward", "apply_logits_processors")
    reads.allowed(monkeypatch, RejectionSampler, "apply_logits_processors")
    company(served[0], seed=11)
    for asked in ({"temperature": 0.9, "min_p": 0.1, "top_p": 0.9}, CONTROLS["bias and penalties"][0]):
        tiny.write(served[0], 3, max_tokens=8, **asked)
    assert calls


def test_greedy_texts_are_those_without_drafts(served: Any, models: Path) -> None:
    import torch
    from transformers import LlamaForCausalLM

    llm, _, _ = served
    network = LlamaForCausalLM.from_pretrained(models / "target", dtype=torch.float32)
    for prompt, output in tiny.write(llm, 4, temperature=0):
        best = network(torch.tensor([prompt + output])).logits[0].argmax(-1)
        assert best[len(prompt) - 1 : -1].tolist() == output


def test_a_request_chooses_its_rule(served: Any) -> None:
    from draftproof.integrations.vllm import counters

    llm, drafts, verify = served
    if drafts == "ngram":
        return
    other = {"token": "block", "block": "token"}[verify]
    before = counters.read()
    tiny.write(llm, 4, temperature=1.0, extra_args={"draftproof": {"verify": other}})
    after = counters.read()
    assert after[other].steps > before[other].steps
    assert after[verify].steps == before[verify].steps
    with pytest.raises(Exception, match="verify"):
        tiny.write(llm, 1, extra_args={"draftproof": {"verify": "magic"}})


def test_logprobs_are_those_of_the_model(served: Any, models: Path) -> None:
    import torch
    from transformers import LlamaForCausalLM
    from vllm import SamplingParams

    llm, drafts, verify = served
    if (drafts, verify) != ("model", "block"):
        return  # vLLM compiles for a while before it returns logprobs
    asked = SamplingParams(temperature=0.7, max_tokens=20, logprobs=2, detokenize=False, ignore_eos=True)
    output = llm.generate([{"prompt_token_ids": tiny.PROMPTS[0]}], asked, use_tqdm=False)[0].outputs[0]
    network = LlamaForCausalLM.from_pretrained(models / "target", dtype=torch.float32)
    text = torch.tensor([tiny.PROMPTS[0] + list(output.token_ids)])
    law = network(text).logits[0].log_softmax(-1)[len(tiny.PROMPTS[0]) - 1 :]
    assert len(output.logprobs) == 20
    for place, (token, entry) in enumerate(zip(output.token_ids, output.logprobs, strict=True)):
        assert entry[token].logprob == pytest.approx(float(law[place, token].detach()), abs=1e-4)


def test_requests_aborted_in_the_middle_leave_the_others_alone(served: Any, models: Path) -> None:
    from vllm import SamplingParams

    llm, _, _ = served
    core = llm.llm_engine
    asked = SamplingParams(temperature=0.8, max_tokens=40, detokenize=False, ignore_eos=True)
    done: dict[str, list[int]] = {}
    for number in range(120):
        core.add_request(f"abort-{number}", {"prompt_token_ids": tiny.PROMPTS[number % 4]}, asked)
    for step in range(200):
        for output in core.step():
            if output.finished:
                done[output.request_id] = list(output.outputs[0].token_ids)
        if step == 3:
            core.abort_request([f"abort-{number}" for number in range(0, 120, 3)])
        if not core.has_unfinished_requests():
            break
    whole = [(tiny.PROMPTS[n % 4], done[f"abort-{n}"]) for n in range(120) if n % 3]
    assert all(len(output) == 40 for _, output in whole)
    assert tiny.audited(models / "target", whole, temperature=0.8).exact
