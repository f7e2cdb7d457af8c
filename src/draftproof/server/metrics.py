"""Metrics of a server for Prometheus: requests, times, and how well drafting works. No label ever holds a text."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from draftproof.engine.trace import Step
from draftproof.engine.worker import Update
from draftproof.server.families import Families
from draftproof.server.vllm_names import VllmName, finished, from_zero

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus' text format, which every version reads

# Values of labels. Others are counted as OTHER, so that there are few, and none is a text.
OTHER = "other"
KINDS = ("chat", "completion")
OUTCOMES = ("stop", "length", "abort", "error", "refused")
PHASES = ("prompt", "draft", "target", "verify", "overhead")
POSITIONS = 32  # deeper draft tokens are counted in the sums, but not by position
FAULTS = 32  # different kinds
REASONS = {  # why a drafter was given up -> what the engine's message says then
    "non_finite": "non-finite",
    "no_law": "does not sum to one",
    "unknown_token": "of a vocabulary of",
    "wrong_shape": "answer has shape",
    "out_of_memory": "out of memory",
}

# Upper limits of buckets: vLLM's, and finer ones, because a step of a small model takes a millisecond.
FIRST = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
BETWEEN = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40,
    80,
)  # fmt: skip
WHOLE = (0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)


class Metrics:
    """What one server counts.

    >>> metrics = Metrics("smollm2")
    >>> metrics.queue(waiting=3, rows_in_use=16, rows=16)
    >>> text, content_type = metrics.text()
    >>> [line for line in text.decode().splitlines() if "waiting" in line and line[0] != "#"]
    ['draftproof_requests_waiting 3.0', 'vllm:num_requests_waiting{model_name="smollm2"} 3.0']
    """

    def __init__(self, model_name: str = "", cache_tokens: int = 0) -> None:
        """`cache_tokens` is how many tokens the KV caches of all rows can hold; 0 if that is not known."""
        self.families = Families(model_name)
        self._cache_tokens = cache_tokens
        self._fault_kinds: set[str] = set()
        self._open_requests()
        self._open_cache()
        self._open_times()
        self._open_drafting()
        self._open_faults()

    # What is counted

    def _open_requests(self) -> None:
        counter, gauge = self.families.counter, self.families.gauge
        self._started = counter("requests_started", "Requests that came in.", labels=["kind"])
        self._ended = counter(
            "requests",
            "Requests that have ended: by the model or a stop string (stop), at their length (length), cancelled by "
            "the client or by draining (abort), failed (error), or never accepted (refused).",
            labels=["kind", "outcome"],
            vllm=[VllmName("request_success", finished)],
        )
        for kind in KINDS:  # series that exist from the beginning show their first request as a change
            self._started.labels(kind)
            for outcome in OUTCOMES:
                self._ended.labels(kind, outcome)
        self._waiting = gauge("requests_waiting", "Requests that wait for a row.", vllm=["num_requests_waiting"])
        self._rows_in_use = gauge("rows_in_use", "Rows that hold a running text.", vllm=["num_requests_running"])
        self._rows = gauge("rows", "Rows of the engine: texts that can run at once.")

    def _open_cache(self) -> None:
        counter, gauge = self.families.counter, self.families.gauge
        self._cached = gauge("cache_tokens", "Tokens in the KV cache now.")
        self._usage = gauge(
            "cache_usage_ratio",
            "Share of the KV cache that is in use, from 0 to 1; NaN where its size is not known.",
            vllm=["kv_cache_usage_perc"],
        )
        self._usage.set(math.nan)
        self._prompt_tokens = counter(
            "prompt_tokens", "Tokens of prompts, reused ones too.", vllm=["prompt_tokens", "prefix_cache_queries"]
        )
        self._reused = counter(
            "cache_reused_tokens",
            "Tokens of prompts that were in the KV cache already and were not prefilled.",
            vllm=["prefix_cache_hits", "prompt_tokens_cached"],
        )

    def _open_times(self) -> None:
        counter, histogram = self.families.counter, self.families.histogram
        self._first = histogram(
            "time_to_first_token_seconds",
            "Seconds from a request to the first token of its text.",
            FIRST,
            vllm=["time_to_first_token_seconds"],
        )
        self._between = histogram(
            "time_between_tokens_seconds",
            "Seconds from one update of a text to the next; an update may bring several tokens.",
            BETWEEN,
            vllm=["inter_token_latency_seconds", "time_per_output_token_seconds"],
        )
        self._whole = histogram(
            "request_seconds", "Seconds from a request to its end.", WHOLE, vllm=["e2e_request_latency_seconds"]
        )
        self._phases = counter(
            "phase_seconds",
            "Seconds of steps by phase; a step of several texts counts for each of them.",
            labels=["phase"],
        )
        for phase in PHASES:
            self._phases.labels(phase)

    def _open_drafting(self) -> None:
        counter = self.families.counter
        self._calls = counter("target_calls", "Target calls; a call for several texts counts for each of them.")
        self._emitted = counter("emitted_tokens", "Tokens of texts.", vllm=["generation_tokens"])
        self._per_call = self.families.histogram(
            "tokens_per_target_call", "Tokens that a target call brought to a text; 1 without speculation.", LENGTHS
        )
        self._drafts = counter("drafts", "Target calls that verified a draft.", vllm=["spec_decode_num_drafts"])
        self._drafted = counter("drafted_tokens", "Draft tokens.", vllm=["spec_decode_num_draft_tokens"])
        self._accepted = counter(
            "accepted_tokens", "Draft tokens that were accepted.", vllm=["spec_decode_num_accepted_tokens"]
        )
        self._expected = counter(
            "expected_accepted_tokens",
            "Draft tokens that the rule accepts on average over its noise, given the drafts.",
        )
        self._drafted_at = counter(
            "position_drafts", f"Drafts that went as deep as this position, 1 to {POSITIONS}.", labels=["position"]
        )
        self._accepted_at = counter(
            "position_accepted_tokens",
            "Draft tokens at this position that were accepted.",
            labels=["position"],
            vllm=[VllmName("spec_decode_num_accepted_tokens_per_pos", from_zero)],
        )
        self._expected_at = counter(
            "position_expected_accepted_tokens",
            "Draft tokens at this position that the rule accepts on average over its noise.",
            labels=["position"],
        )

    def _open_faults(self) -> None:
        counter = self.families.counter
        self._off = counter(
            "drafter_off", "Texts whose drafter was given up; they go on by plain sampling.", labels=["reason"]
        )
        for reason in (*REASONS, OTHER):
            self._off.labels(reason)
        self._faults = counter("faults", "Internal errors of the server, by class of the error.", labels=["kind"])

    # What the server tells

    def request_started(self, kind: str) -> None:
        """A request came in."""
        self._started.labels(_known(kind, KINDS)).inc()

    def request_ended(self, kind: str, outcome: str, seconds: float | None = None) -> None:
        """A request is over, `seconds` after it came in; a refused one took no time worth counting."""
        self._ended.labels(_known(kind, KINDS), _known(outcome, OUTCOMES)).inc()
        if seconds is not None and outcome != "refused":
            self._whole.observe(seconds)

    def queue(self, waiting: int, rows_in_use: int, rows: int) -> None:
        """How many requests wait, and how many rows are in use, now."""
        self._waiting.set(waiting)
        self._rows_in_use.set(rows_in_use)
        self._rows.set(rows)

    def cache(self, tokens_in_use: int, tokens_reused: int) -> None:
        """How many tokens the KV cache holds now, and how many of prompts were reused since the last call."""
        self._cached.set(tokens_in_use)
        self._usage.set(tokens_in_use / self._cache_tokens if self._cache_tokens else math.nan)
        self._reused.inc(tokens_reused)

    def update(self, update: Update, seconds: float, first: bool, prompt_tokens: int = 0) -> None:
        """An update came `seconds` after its request if it is the text's first, else after the one before.

        `prompt_tokens` is the length of a prompt that was not counted yet.
        """
        self._prompt_tokens.inc(prompt_tokens)
        if update.steps:
            (self._first if first else self._between).observe(seconds)
        for step in update.steps:
            self._step(step)

    def fault(self, kind: str) -> None:
        """Something went wrong; the kind is one word, such as the class of an error."""
        is_word = re.fullmatch(r"[A-Za-z]\w{0,39}", kind, flags=re.ASCII)
        if is_word and (kind in self._fault_kinds or len(self._fault_kinds) < FAULTS):
            self._fault_kinds.add(kind)
        else:
            kind = OTHER
        self._faults.labels(kind).inc()

    def drafter_off(self, reason: str) -> None:
        """A text's drafter was given up; the reason is one of its trace's `failures`, and may quote anything."""
        found = (known for known, words in REASONS.items() if words in reason.lower())
        self._off.labels(next(found, OTHER)).inc()

    def _step(self, step: Step) -> None:
        self._calls.inc()
        self._emitted.inc(len(step.tokens))
        self._per_call.observe(len(step.tokens))
        for phase, seconds in step.seconds.items():
            self._phases.labels(_known(phase, PHASES)).inc(_positive(seconds))
        if not step.drafted:
            return
        self._drafts.inc()
        self._drafted.inc(step.drafted)
        self._accepted.inc(step.accepted)
        self._expected.inc(_positive(step.expected))
        reached = step.reached or (1.0,) * step.accepted  # a rule that has no law for it
        for position in range(1, min(step.depth, POSITIONS) + 1):
            label = str(position)
            self._drafted_at.labels(label).inc()
            self._accepted_at.labels(label).inc(position <= step.accepted)
            self._expected_at.labels(label).inc(_positive(reached[position - 1]) if position <= len(reached) else 0)

    # What Prometheus reads

    def text(self) -> tuple[bytes, str]:
        """All metrics in Prometheus' text format, and its content type."""
        return self.families.text(), CONTENT_TYPE


def _known(value: str, values: Sequence[str]) -> str:
    return value if value in values else OTHER


def _positive(amount: float) -> float:
    """Zero for what rounding made less, which a counter does not take."""
    return max(float(amount), 0.0)
