"""What a server exports to Prometheus: sums of the traces, under two names, and never a text."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import draftproof as dp
from draftproof.engine.trace import Step
from draftproof.engine.worker import Update
from draftproof.server.metrics import CONTENT_TYPE, FAULTS, KINDS, OTHER, OUTCOMES, PHASES, POSITIONS, REASONS, Metrics
from tests.support.schedulers import table

DOCS = Path(__file__).resolve().parents[2] / "docs"
TARGET, DRAFT = table(1), table(2)
NAMES = re.compile(r"(?<![\w:.])(?:draftproof_|vllm:)\w+(?![\w.(*])")


class Served:
    """Texts of an AsyncEngine, told to metrics update by update, as a server does."""

    def __init__(self, prompts, target=TARGET, draft=DRAFT, cancelled=False, **settings):
        self.metrics, self.updates = Metrics("a model"), []
        self.cancelled, self.settings = cancelled, {"tree": "chain:4", **settings}
        self.outputs = asyncio.run(self._serve(target, draft, prompts))
        self.steps = [step for output in self.outputs for step in output.trace.steps]

    async def _serve(self, target, draft, prompts):
        async with dp.AsyncEngine(target, draft=draft, rows=2) as engine:
            return await asyncio.gather(*(self._write(engine, prompt, seed) for seed, prompt in enumerate(prompts)))

    async def _write(self, engine, prompt, seed):
        request = engine.add_request(prompt, seed=seed, max_new_tokens=30, **self.settings)
        first = True
        async for update in request.updates():
            self.updates.append(update)
            self.metrics.update(update, 0.5 if first else 0.25, first, len(prompt) if first else 0)
            first = False
            if self.cancelled:
                request.cancel()
        return request.output


def series(metrics):
    """Every value by the name and the labels of its series."""
    text, _ = metrics.text()
    families = text_string_to_metric_families(text.decode())
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def totals(metrics):
    """Sums over all labels, by name."""
    found = Counter()
    for (name, _), value in series(metrics).items():
        found[name] += value
    return found


def by_label(metrics, name, label):
    return {dict(labels)[label]: value for (n, labels), value in series(metrics).items() if n == name}


def step(**fields):
    return Step(**{"tokens": (1,), "drafted": 0, "depth": 0, "accepted": 0, "reached": (), "cost": (), **fields})


# What engines write


@pytest.mark.parametrize(
    "how",
    [{}, {"tree": "best:6x3", "verify": "traversal"}, {"tree": "auto"}, {"verify": "gumbel"}, {"speculate": False}],
    ids=str,
)
def test_sums_are_those_of_the_traces(how):
    served = Served([[0], [1, 2], [3]], **how)
    found, steps = totals(served.metrics), served.steps
    assert found["draftproof_emitted_tokens_total"] == sum(len(output.tokens) for output in served.outputs) == 90
    assert found["draftproof_tokens_per_target_call_sum"] == 90
    assert found["draftproof_tokens_per_target_call_count"] == found["draftproof_target_calls_total"] == len(steps)
    assert found["draftproof_prompt_tokens_total"] == 4
    assert found["draftproof_drafts_total"] == sum(step.drafted > 0 for step in steps)
    assert (found["draftproof_drafts_total"] > 0) == how.get("speculate", True)
    assert found["draftproof_drafted_tokens_total"] == sum(step.drafted for step in steps)
    assert found["draftproof_accepted_tokens_total"] == sum(step.accepted for step in steps)
    assert found["draftproof_expected_accepted_tokens_total"] == pytest.approx(sum(step.expected for step in steps))
    seconds = {phase: sum(step.seconds[phase] for step in steps) for phase in PHASES}
    assert by_label(served.metrics, "draftproof_phase_seconds_total", "phase") == pytest.approx(seconds)


@pytest.mark.parametrize("how", [{}, {"tree": "best:6x3", "verify": "traversal"}, {"verify": "gumbel"}], ids=str)
def test_acceptance_by_position_is_that_of_the_trace(how):
    served = Served([[0]], **how)
    deep = by_label(served.metrics, "draftproof_position_drafts_total", "position")
    accepted = by_label(served.metrics, "draftproof_position_accepted_tokens_total", "position")
    shares = [accepted[position] / deep[position] for position in sorted(deep, key=int)]
    assert shares == pytest.approx(served.outputs[0].trace.acceptance)
    assert sum(accepted.values()) == served.outputs[0].trace.accepted > 0
    expected = by_label(served.metrics, "draftproof_position_expected_accepted_tokens_total", "position")
    assert sum(expected.values()) == pytest.approx(sum(step.expected for step in served.steps))
    assert all(0 <= expected[position] <= deep[position] for position in deep)


def test_times_are_those_that_were_told():
    served = Served([[0], [1], [2]])
    found = totals(served.metrics)
    assert found["draftproof_time_to_first_token_seconds_count"] == 3
    assert found["draftproof_time_to_first_token_seconds_sum"] == 3 * 0.5
    assert found["draftproof_time_between_tokens_seconds_count"] == len(served.updates) - 3 > 3
    assert found["draftproof_time_between_tokens_seconds_sum"] == (len(served.updates) - 3) * 0.25


def test_an_update_without_a_step_is_no_time_between_tokens():
    served = Served([[0]], cancelled=True)
    assert served.outputs[0].finish == "cancelled"
    empty = [update for update in served.updates if not update.steps]
    assert len(empty) == 1
    assert totals(served.metrics)["draftproof_time_between_tokens_seconds_count"] == len(served.updates) - 2


def always(number, size=5):
    return lambda tree, tokens, nodes: np.full((len(tokens), len(nodes), size), number)


def raises(message):
    def extend(*given):
        raise RuntimeError(message)

    return extend


BROKEN = {  # why a drafter is given up: what its session does
    "non_finite": {"extend": always(np.nan)},
    "no_law": {"extend": always(0.3), "speaks": "law"},
    "unknown_token": {"draft_tokens": np.array([0, 9]), "extend_reduced": always(0.0, 2), "widen": lambda q: q},
    "wrong_shape": {"extend": always(0.0, 4)},
    "out_of_memory": {"extend": raises("CUDA out of memory. Tried to allocate 2.00 GiB.")},
    OTHER: {"extend": raises("no draft after 'the secret'")},
}


@pytest.mark.parametrize("reason", [*REASONS, OTHER])
def test_why_a_drafter_was_given_up(reason):
    """The engine's own messages have a name each; another error's message may quote anything, and has none."""
    draft = table(2)
    session = draft.session

    def broken(rows, capacity):
        opened = session(rows, capacity)
        vars(opened).update(BROKEN[reason])
        return opened

    draft.session = broken
    served = Served([[0]], draft=draft)
    (failure,) = served.outputs[0].trace.failures
    served.metrics.drafter_off(failure)
    off = by_label(served.metrics, "draftproof_drafter_off_total", "reason")
    assert off == {**dict.fromkeys([*REASONS, OTHER], 0), reason: 1}, failure


# What else the server tells


def test_requests_queue_and_cache():
    metrics = Metrics("m", cache_tokens=400)
    for kind, outcome in [("chat", "stop"), ("chat", "stop"), ("completion", "abort"), ("completion", "refused")]:
        metrics.request_started(kind)
        metrics.request_ended(kind, outcome, 2.0)
    metrics.request_started("chat")
    metrics.queue(waiting=9, rows_in_use=3, rows=4)
    metrics.queue(waiting=2, rows_in_use=4, rows=4)
    metrics.cache(tokens_in_use=300, tokens_reused=7)
    metrics.cache(tokens_in_use=100, tokens_reused=5)
    found, kept = totals(metrics), series(metrics)
    assert by_label(metrics, "draftproof_requests_started_total", "kind") == {"chat": 3, "completion": 2}
    assert kept["draftproof_requests_total", frozenset({("kind", "chat"), ("outcome", "stop")})] == 2
    assert found["draftproof_requests_total"] == 4
    assert found["draftproof_request_seconds_count"] == 3  # a request that is refused has no duration
    gauges = ("requests_waiting", "rows_in_use", "rows", "cache_tokens", "cache_usage_ratio")
    assert [found[f"draftproof_{name}"] for name in gauges] == [2, 4, 4, 100, 0.25]
    assert found["draftproof_cache_reused_tokens_total"] == 12


def test_usage_of_a_cache_of_unknown_size_is_not_a_number():
    metrics = Metrics()
    metrics.cache(tokens_in_use=300, tokens_reused=0)
    assert np.isnan(totals(metrics)["draftproof_cache_usage_ratio"])


def test_two_servers_share_nothing():
    one, other = Metrics("one"), Metrics("other")
    one.fault("timeout")
    one.request_started("chat")
    assert totals(one)["draftproof_faults_total"] == 1
    assert (totals(other)["draftproof_faults_total"], totals(other)["draftproof_requests_started_total"]) == (0, 0)


# vLLM's names

VLLM = {  # as vLLM exports them
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:prompt_tokens": "counter",
    "vllm:prompt_tokens_cached": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:request_success": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:time_per_output_token_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:spec_decode_num_drafts": "counter",
    "vllm:spec_decode_num_draft_tokens": "counter",
    "vllm:spec_decode_num_accepted_tokens": "counter",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "counter",
}


def busy():
    """Metrics of which none is zero but the faults."""
    metrics = Served([[0], [1, 2], [3]]).metrics
    for kind, outcome in [("chat", "stop"), ("completion", "stop"), ("chat", "length"), ("chat", "refused")]:
        metrics.request_started(kind)
        metrics.request_ended(kind, outcome, 1.5)
    metrics.queue(waiting=9, rows_in_use=3, rows=4)
    metrics.cache(tokens_in_use=300, tokens_reused=2)
    return metrics


def test_vllm_names_and_kinds():
    families = list(text_string_to_metric_families(busy().text()[0].decode()))
    assert {family.name: family.type for family in families if family.name.startswith("vllm:")} == VLLM
    samples = [sample for family in families for sample in family.samples if family.name.startswith("vllm:")]
    assert all(sample.labels["model_name"] == "a model" for sample in samples)
    others = {label for sample in samples for label in sample.labels}
    assert others == {"model_name", "finished_reason", "position", "le"}
    counted = {sample.name for family in families for sample in family.samples if family.type == "counter"}
    assert all(name.endswith("_total") for name in counted)


def test_vllm_has_the_same_numbers():
    metrics = busy()
    found = totals(metrics)
    for one in metrics.families.described():
        for name in one.vllm:
            if one.kind == "histogram":
                buckets = by_label(metrics, f"{one.name}_bucket", "le")
                assert by_label(metrics, f"{name}_bucket", "le") == buckets
                assert buckets["+Inf"] == found[f"{one.name}_count"] == found[f"{name}_count"] > 0
                assert found[f"{one.name}_sum"] == found[f"{name}_sum"] > 0
            elif one.name != "draftproof_requests_total":
                assert found[name] == pytest.approx(found[one.name], nan_ok=True)
                assert found[name] != 0, name
    reasons = by_label(metrics, "vllm:request_success_total", "finished_reason")
    assert reasons == {"stop": 2, "length": 1, "abort": 0, "error": 0}
    ours = by_label(metrics, "draftproof_position_accepted_tokens_total", "position")
    theirs = by_label(metrics, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "position")
    assert theirs == {str(int(position) - 1): value for position, value in ours.items()}
    assert set(theirs) == set("0123")


# What may not happen


def test_labels_are_bounded():
    metrics = Metrics()
    empty = len(series(metrics))
    for i in range(200):
        metrics.request_started(f"kind {i}")
        metrics.request_ended(f"kind {i}", f"outcome {i}", 1.0)
        metrics.fault(f"Fault{i}")
        metrics.fault(f"fault {i}")
        metrics.drafter_off(f"reason {i}")
        seconds = {f"phase {i}": 1.0}
        deep = step(drafted=i, depth=i, reached=(0.5,) * i, seconds=seconds)
        metrics.update(Update(0, (), (deep,), ""), 0.1, False)
    assert len(series(metrics)) <= empty + 2 + 2 + (FAULTS + 1) + 1 + 4 * POSITIONS
    assert by_label(metrics, "draftproof_requests_started_total", "kind") == {**dict.fromkeys(KINDS, 0), OTHER: 200}
    assert set(by_label(metrics, "draftproof_requests_total", "outcome")) == {*OUTCOMES, OTHER}
    faults = by_label(metrics, "draftproof_faults_total", "kind")
    assert faults == {**{f"Fault{i}": 1 for i in range(FAULTS)}, OTHER: 400 - FAULTS}
    assert set(by_label(metrics, "draftproof_position_drafts_total", "position")) == set(map(str, range(1, 33)))


def test_rounding_below_zero_is_no_error():
    metrics = Metrics()
    rounded = step(drafted=1, depth=1, reached=(-1e-17,), seconds={"target": 1.0, "overhead": -1e-9})
    metrics.update(Update(0, (), (rounded,), ""), 0.1, False)
    found = totals(metrics)
    assert (found["draftproof_phase_seconds_total"], found["draftproof_expected_accepted_tokens_total"]) == (1, 0)


def test_texts_are_not_exported():
    prompt = "The password of the safe"
    metrics = Metrics("tiny")

    async def main():
        async with dp.AsyncEngine("tiny", draft="ngram", rows=1) as engine:
            request = engine.add_request(prompt, chat=False, max_new_tokens=40, seed=1, logprobs=2)
            async for update in request.updates():
                metrics.update(update, 0.1, False)
            return request.output

    output = asyncio.run(main())
    metrics.drafter_off(f"could not draft after {prompt!r}")
    metrics.fault(prompt)
    metrics.request_ended(prompt, prompt)
    text = metrics.text()[0].decode()
    words = set(re.findall(r"[A-Za-z]{5,}", f"{prompt} {output.text}"))
    assert "password" in words
    assert len(words) > 5
    labels = {value for _, pairs in series(metrics) for _, value in pairs}
    assert not words & set(re.findall(r"\w+", " ".join(labels)))
    assert not any(sentence in text for sentence in (prompt, output.text))


def test_prometheus_reads_it():
    text, content_type = busy().text()
    assert content_type == CONTENT_TYPE
    families = list(text_string_to_metric_families(text.decode()))
    assert all(family.documentation for family in families)
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    written = [line.rpartition(" ")[0] for line in text.decode().splitlines() if not line.startswith("#")]
    assert len(written) == len(set(written)) > 200
    assert "unknown" not in {family.type for family in families}
    assert not any(name.endswith("_created") for name in names)


# The docs and the dashboard


def exported(metrics):
    """Names of all series, and of those that a fault would add."""
    metrics.fault("timeout")
    return {name for name, _ in series(metrics)}


def test_the_page_has_every_metric_and_no_other():
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `draftproof_")]
    listed = {name for row in rows for name in NAMES.findall(row[0] + row[-1])}
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported(busy())}
    assert listed == names
    assert set(NAMES.findall(page)) <= exported(busy()) | names


def test_the_page_has_every_value_of_a_label():
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    assert {*KINDS, *PHASES, *REASONS, OTHER} <= set(re.findall(r"`(\w+)`", page))


def test_the_dashboard_uses_what_is_exported():
    board = json.loads((DOCS / "grafana.json").read_text(encoding="utf-8"))
    panels = board["panels"]
    charts = [panel for panel in panels if panel["type"] != "row"]
    asked = [target["expr"] for panel in charts for target in panel["targets"]]
    asked += [one["definition"] for one in board["templating"]["list"] if one["type"] == "query"]
    used = {name for expression in asked for name in NAMES.findall(expression)}
    assert used <= exported(busy())
    assert all(NAMES.search(expression) for expression in asked)
    unused = {one.name for one in Metrics().families.described()} - {re.sub("_bucket$", "", name) for name in used}
    left = {"cache_tokens", "requests_started_total", "drafts_total", "tokens_per_target_call"}  # others say as much
    assert unused == {f"draftproof_{name}" for name in left}
    variables = {one["name"] for one in board["templating"]["list"]}
    written = set(re.findall(r"\$\{?(\w+)", json.dumps(board)))
    assert written <= variables | {"__rate_interval", "__all"}


def test_the_dashboard_is_laid_out():
    panels = json.loads((DOCS / "grafana.json").read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for a, b in combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
    assert all(panel["title"] and (panel["type"] == "row" or panel["description"]) for panel in panels)
