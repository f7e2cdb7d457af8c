"""Texts of model runner V2, in Triton's interpreter."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests_vllm import reads, tiny


@pytest.fixture(scope="module")
def served(models: Path) -> Any:
    """Block verification of a model's drafts. Top-k and top-p are in PyTorch: vLLM's kernel does not run here."""
    from vllm.v1.sample.ops import topk_topp_sampler

    topk_topp_sampler.HAS_TRITON = False  # the kernel calls a method of a loop's variable, which is an int there
    return tiny.engine(models / "target", tiny.drafter(models / "drafter"), "block", max_num_seqs=64, max_model_len=64)


def the_one(fits: Callable[[type], bool]) -> Any:
    """The only object in this process whose type fits."""
    gc.unfreeze()  # vLLM freezes what an engine is made of, and frozen objects are not listed
    (found,) = (each for each in gc.get_objects() if fits(type(each)))
    return found


def server() -> Any:
    """The plug-in's part of the engine's sampler."""
    from draftproof.integrations.vllm.runner_v2 import SamplerServer

    return the_one(lambda kind: kind is SamplerServer)


def drafts() -> Any:
    """The rows [slots, draft tokens, V] that the engine's drafter leaves for verification."""
    from draftproof.integrations.vllm.drafting import is_successive

    return the_one(is_successive).draft_logits


def test_texts_pass_the_audit_and_are_counted(served: Any, models: Path) -> None:
    from draftproof.integrations.vllm import counters

    before = counters.read()
    written = tiny.write(served, 64, temperature=0.8, max_tokens=12)
    after = counters.read()
    assert tiny.audited(models / "target", written, models / "drafter", temperature=0.8).exact
    assert after["block"].accepted - before["block"].accepted > 50
    assert after["block"].faulty == before["block"].faulty


def test_what_vllm_warms_up_with_is_not_counted(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker import cpu_worker

    from draftproof.integrations.vllm import counters

    def steps() -> float:
        return sum(each.steps for each in counters.read().values())

    before = steps()
    # the last thing that a worker on a CPU does there; on a GPU vLLM verifies drafts
    monkeypatch.setattr(cpu_worker, "set_random_seed", lambda *_: tiny.write(served, 2, max_tokens=4))
    served.collective_rpc("compile_or_warm_up_model")
    assert steps() == before
    tiny.write(served, 2, max_tokens=4)
    assert steps() > before


def test_raw_and_processed_logits_give_the_same_tokens(served: Any) -> None:
    """Where the kernels apply the controls themselves, and where vLLM does."""
    sampler = server()
    asked = {"temperature": 0.9, "top_k": 12, "max_tokens": 10, "seed": 3}
    raw = tiny.write(served, 4, **asked)
    sampler.fused = False
    try:
        assert tiny.write(served, 4, **asked) == raw
    finally:
        sampler.fused = True


def test_launches_that_are_made_again_give_the_same_texts(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels, with their launches recorded, beside the same in PyTorch; on raw logits and on processed."""
    from draftproof.kernels.lib.recording import Recording

    sampler, again = server(), Recording.__call__
    asked = {"temperature": 0.9, "max_tokens": 12, "seed": 3}
    every = [asked, {**asked, "top_k": 12}, {**asked, "temperature": 0.0}]
    expected = [tiny.write(served, 2, **each) for each in every]
    made: list[int] = []
    monkeypatch.setattr(Recording, "__call__", lambda self, inputs: made.append(1) or again(self, inputs))
    monkeypatch.setattr(sampler.verification, "backend", "triton")
    for raw in (True, False):
        monkeypatch.setattr(sampler, "fused", raw)
        before = len(made)
        assert [tiny.write(served, 2, **each) for each in every] == expected
        assert len(made) > before


def test_drafts_whose_laws_are_kept_pass_the_audit(served: Any, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: our kernel draws the drafter's tokens, and verification does not read their rows again."""
    from draftproof.integrations.vllm import counters, drafting
    from draftproof.kernels.slots import draw

    draws, drawn = draw.draw, list[int]()
    monkeypatch.setattr(draw, "draw", lambda *given: drawn.append(1) or draws(*given))
    monkeypatch.setattr(server().verification, "backend", "triton")
    monkeypatch.setattr(drafting, "_kept", type(drafting._kept)())
    drafting.keep_laws(drafts())
    before = counters.read()["block"]
    written = tiny.write(served, 24, temperature=0.8, max_tokens=10)
    after = counters.read()["block"]
    assert drawn
    assert drafting.laws_of(drafts()) is not None
    assert tiny.audited(models / "target", written, models / "drafter", temperature=0.8).exact
    assert after.faulty == before.faulty
    assert after.accepted - before.accepted > 0.2 * (after.drafted - before.drafted)  # none if they were taken for old


def test_a_step_waits_for_the_device_no_more_than_vllm_does(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from draftproof import kernels
    from draftproof.integrations.vllm import layout, runner_v2

    calls: list[str] = []
    for name in ("call", "verify"):
        reads.barred(monkeypatch, runner_v2.SamplerServer, name, calls)
    reads.allowed(monkeypatch, kernels, "verify")
    reads.allowed(monkeypatch, runner_v2, "gumbel_sample")
    # no grammar is there, and nothing is done for one
    monkeypatch.setattr(layout, "ended_by_grammars", lambda *_: pytest.fail("no draft is ended by a grammar"))
    for asked in ({"temperature": 0.9, "top_k": 12}, {"temperature": 0.9, "min_p": 0.1, "top_p": 0.9}):
        tiny.write(served, 3, max_tokens=6, **asked)
    assert {"call", "verify"} <= set(calls)


def test_a_seed_gives_the_same_text_beside_a_request_that_joins(served: Any) -> None:
    alone = tiny.write(served, 1, temperature=1.0, seed=11, max_tokens=10)[0]
    beside = tiny.write(served, 3, prompts=tiny.PROMPTS[:1], temperature=1.0, seed=11, max_tokens=10)
    assert beside == [alone] * 3


def test_min_p_and_penalties_pass_the_audit(served: Any, models: Path) -> None:
    for asked in ({"temperature": 0.9, "min_p": 0.1}, {"temperature": 0.9, "repetition_penalty": 1.4}):
        written = tiny.write(served, 24, max_tokens=10, **asked)
        assert tiny.audited(models / "target", written, **asked).exact
