"""What servers and requests ask for, what their controls mean for the kernels, and what is counted."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftproof.errors import DraftproofError
from draftproof.integrations.vllm import counters, drafting, requests, settings
from draftproof.integrations.vllm.requests import Mix
from draftproof.kernels import ChainRule

OFF: dict[str, Any] = {
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "logit_bias": None, "allowed_token_ids": None, "bad_words": None, "min_tokens": 0,
    "thinking_token_budget": None, "extra_args": None, "structured_outputs": None,
}  # fmt: skip


def params(**changed: Any) -> Any:
    return SimpleNamespace(**{**OFF, **changed})


def test_a_server_asks_in_its_config_or_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(settings.VARIABLE, raising=False)
    assert settings.of_server({}) is None
    assert settings.of_server({"other": 1}) is None
    assert settings.of_server({"draftproof": {"verify": "token"}}).verify == "token"
    monkeypatch.setenv(settings.VARIABLE, "block")
    assert settings.of_server({}).verify == "block"
    assert settings.of_server({"draftproof": {"verify": "token"}}).verify == "token"  # the config wins


@pytest.mark.parametrize("wrong", ["magic", {}, {"verify": "magic"}, {"verify": "token", "more": 1}, None, 3])
def test_a_wrong_choice_is_named(wrong: Any) -> None:
    with pytest.raises(DraftproofError, match=r"draftproof must be .*verify.*, not "):
        settings.of_request({"draftproof": wrong})
    with pytest.raises(DraftproofError, match=r"--additional-config"):
        settings.of_server({"draftproof": wrong})


def test_a_request_has_the_servers_rule_or_its_own() -> None:
    assert requests.choice(params(), "block").rule == ChainRule.BLOCK
    assert requests.choice(params(extra_args={"other": 1}), "block").rule == ChainRule.BLOCK
    assert requests.choice(params(extra_args={"draftproof": "token"}), "block").rule == ChainRule.TOKEN
    assert requests.choice(params(extra_args={"draftproof": {"verify": "token"}}), "block").rule == ChainRule.TOKEN
    assert requests.choice(params(temperature=0.0), "block").rule == ChainRule.ONEHOT


@pytest.mark.parametrize(
    ("changed", "raw", "truncates"),
    [
        ({}, True, 0),
        ({"top_k": 50, "top_p": 0.9}, True, 1),
        ({"top_k": -1}, True, 0),
        ({"top_k": 5000}, True, 2),
        ({"top_p": 0.9}, True, 2),
        ({"min_p": 0.1}, True, 2),
        ({"min_p": 0.1, "top_k": 20}, True, 1),
        ({"min_p": 0.1, "top_p": 0.9}, False, 2),  # vLLM has another order
        ({"repetition_penalty": 1.1}, False, 0),
        ({"logit_bias": {3: 1.0}}, False, 0),
        ({"min_tokens": 4}, False, 0),
        ({"thinking_token_budget": 0}, False, 0),
        ({"temperature": 0.0, "top_p": 0.9}, True, 0),
    ],
)
def test_which_controls_the_kernels_apply_themselves(changed: dict[str, Any], raw: bool, truncates: int) -> None:
    made = requests.choice(params(**changed), "token")
    assert (made.raw, made.truncates) == (raw, truncates)


def test_a_batch_is_as_hard_as_its_hardest_request() -> None:
    easy, cut, greedy = (
        requests.choice(params(**changed), "token") for changed in ({}, {"top_p": 0.9}, {"temperature": 0.0})
    )
    assert requests.mix([easy]) == Mix(raw=True, truncates=0, greedy=False, whole=True)
    assert requests.mix([cut, greedy]) == Mix(raw=True, truncates=2, greedy=True, whole=False)
    assert requests.mix([easy, requests.choice(params(bad_words=["x"]), "token")]).raw is False


def test_counters_are_shared_and_summed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(counters.VARIABLE, str(tmp_path))
    device = torch.device("cpu")
    here, silent = counters.Counters(device), counters.Counters(device, writes=False)
    rule = torch.tensor([ChainRule.TOKEN, ChainRule.BLOCK, ChainRule.BLOCK], dtype=torch.int32)
    tokens = torch.tensor([[3, 4], [5, -1], [-1, -1]])
    reach = torch.tensor([[0.5, 0.25], [0.75, 0.0], [0.0, 0.0]])
    for each in (here, silent):
        each.add(rule, tokens, torch.tensor([1, 1, 0]), reach, torch.tensor([0, 8, 0]))
    read = counters.read()
    assert read["token"] == (1, 2, 1, 0.75, 0, [1, 1], [1, 0], [0.5, 0.25])
    assert read["block"] == (1, 1, 1, 0.75, 1, [1], [1], [0.75])
    assert read["onehot"].steps == 0
    (tmp_path / "other.f64").write_bytes((tmp_path / f"{os.getpid()}.f64").read_bytes())
    (tmp_path / "half.f64").write_bytes(b"12")
    assert counters.read()["token"].drafted == 4
    assert counters.read(tmp_path / "nowhere")["token"].steps == 0


def test_what_vllm_warms_up_with_is_not_counted(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(counters.VARIABLE, str(tmp_path))
    each = counters.Counters(torch.device("cpu"))

    def step() -> None:
        rule = torch.tensor([ChainRule.TOKEN], dtype=torch.int32)
        each.add(rule, torch.tensor([[3, 4]]), torch.tensor([1]), torch.tensor([[0.5, 0.25]]), torch.tensor([0]))

    counters.warm_up()(step)()
    assert counters.read()["token"].steps == 0
    step()
    assert counters.read()["token"].steps == 1


def test_a_step_inside_a_cuda_graph_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA bars questions about events while it captures, and later those about an event that was captured."""
    monkeypatch.delenv(counters.VARIABLE, raising=False)
    each = counters.Counters(torch.device("cpu"))
    each.table, each._host, each._next = each.table + 1, torch.zeros_like(each.table), 0.0  # as on a GPU, and due
    event = SimpleNamespace(record=lambda: None, query=lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    for captures in (True, False):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda now=captures: now)
        each.publish()
        assert (each._copied is None) is captures
    each.publish()
    assert float(each.shared.sum()) == each.table.numel()


def test_metrics_have_a_series_for_each_rule_and_position(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prometheus_client")
    from draftproof.integrations.vllm.metrics import CounterCollector

    monkeypatch.setenv(counters.VARIABLE, str(tmp_path))
    rule = torch.tensor([ChainRule.BLOCK], dtype=torch.int32)
    counters.Counters(torch.device("cpu")).add(
        rule, torch.tensor([[3, 4]]), torch.tensor([1]), torch.tensor([[0.5, 0.25]]), torch.tensor([0])
    )
    samples = {(s.name, *s.labels.values()): s.value for family in CounterCollector().collect() for s in family.samples}
    assert samples["draftproof_accepted_tokens_total", "block"] == 1
    assert samples["draftproof_expected_accepted_tokens_total", "block"] == 0.75
    assert samples["draftproof_position_expected_accepted_tokens_total", "block", "2"] == 0.25
    assert not any("token" in key[1:] for key in samples)  # nothing was verified by it


@pytest.mark.parametrize("started_by_vllm", [False, True])
def test_a_program_has_counters_of_its_own_and_a_child_its_parents(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, started_by_vllm: bool
) -> None:
    pytest.importorskip("prometheus_client")
    from draftproof.integrations.vllm import metrics

    joined: list[Any] = []
    monkeypatch.setenv(counters.VARIABLE, str(tmp_path))
    monkeypatch.setattr(metrics.REGISTRY, "register", joined.append)
    monkeypatch.setattr(metrics.multiprocessing, "parent_process", lambda: object() if started_by_vllm else None)
    metrics.offer()
    assert (os.environ[counters.VARIABLE] == str(tmp_path)) is started_by_vllm
    assert len(joined) == (not started_by_vllm)


def test_seeds_of_drafts_differ_from_step_to_step_and_touch_no_other_slot() -> None:
    seeds, slot = torch.tensor([5, 6, 7, 8]), torch.tensor([2, 0])
    made = [drafting.by_length(seeds, slot, torch.tensor([n, n + 1])) for n in range(100)]
    assert all(each[[1, 3]].tolist() == [6, 8] for each in made)
    assert len({int(each[2]) for each in made}) == 100
    assert seeds.tolist() == [5, 6, 7, 8]


def test_a_drafters_noise_follows_the_requests_generator_without_moving_it() -> None:
    logits = torch.zeros(3, 50)
    sampling = SimpleNamespace(temperature=torch.tensor([1.0, 0.0, 1.0]), generators={})
    draws = drafting.SeededDraws()

    def drafted(seed: int, used: int = 0) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(used):
            torch.randint(0, 9, (), generator=generator)
        sampling.generators = {2: generator}
        draws.restart()
        before = generator.get_state()
        tokens = [int(draws.draw(logits, sampling)[0][2]) for _ in range(8)]
        assert torch.equal(before, generator.get_state())
        return tokens

    first = drafted(1)
    assert len(set(first)) > 2  # from token to token
    assert drafted(1) == first
    assert drafted(1, used=1) != first  # from step to step
    assert drafted(2) != first
    tokens, law = draws.draw(logits + torch.arange(50.0), sampling)
    assert int(tokens[1]) == 49  # greedy
    torch.testing.assert_close(law.sum(-1), torch.ones(3))
