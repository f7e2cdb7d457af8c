"""The counters of an engine's workers beside vLLM's own, at its Prometheus endpoint."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterator

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from draftproof.integrations.vllm import counters

FAMILIES = {
    "steps": "Steps of one request with at least one draft token.",
    "drafted": "Draft tokens that were verified.",
    "accepted": "Draft tokens that were accepted.",
    "expected": "Draft tokens that the rule accepts on average over its noise.",
    "faulty": "Steps with bad input: NaN in logits, ids outside of the vocabulary, drafts of probability zero.",
    "drafted_at": "Drafts that went as deep as this position.",
    "accepted_at": "Draft tokens at this position that were accepted.",
    "expected_at": "Draft tokens at this position that the rule accepts on average over its noise.",
}
NAMES = {  # as `draftproof serve` has them
    "steps": "steps", "drafted": "drafted_tokens", "accepted": "accepted_tokens",
    "expected": "expected_accepted_tokens", "faulty": "faulty_steps", "drafted_at": "position_drafts",
    "accepted_at": "position_accepted_tokens", "expected_at": "position_expected_accepted_tokens",
}  # fmt: skip


class CounterCollector(Collector):
    """Reads the counters when Prometheus asks."""

    def collect(self) -> Iterator[CounterMetricFamily]:
        """A family for each sum; those by position have it as a label, counted from 1."""
        rules = {rule: counts for rule, counts in counters.read().items() if counts.steps}
        for field, words in FAMILIES.items():
            labels = ["rule", "position"] if field.endswith("_at") else ["rule"]
            family = CounterMetricFamily(f"draftproof_{NAMES[field]}", words, labels=labels)
            for rule, counts in rules.items():
                value = counts._asdict()[field]
                for position, number in enumerate(value if isinstance(value, list) else [value], 1):
                    family.add_metric([rule, str(position)][: len(labels)], number)
            yield family


def offer() -> None:
    """Make the folder of the counters and join vLLM's endpoint; to be called once by a process that configures engines.

    Processes that vLLM starts keep the folder of the one that started them. A server that is started as a program has a
    folder of its own, whatever its environment says: another engine's counters are not its.
    """
    if counters.VARIABLE in os.environ and multiprocessing.parent_process() is not None:
        return
    os.environ[counters.VARIABLE] = folder = tempfile.mkdtemp(prefix="draftproof-vllm-")
    atexit.register(_remove, folder, os.getpid())
    REGISTRY.register(CounterCollector())


def _remove(folder: str, maker: int) -> None:
    if os.getpid() == maker:  # not where a child of it ends
        shutil.rmtree(folder, ignore_errors=True)
