"""vLLM's names for our metrics, so that dashboards and alerts made for vLLM work here too.

A family is recorded once, and copied under its other names when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from prometheus_client import Metric

Labels = Mapping[str, str]


def same(labels: Labels) -> Labels:
    """vLLM has the same labels as we."""
    return labels


def finished(labels: Labels) -> Labels | None:
    """Our outcome is vLLM's reason; requests that were refused never reach vLLM's engine, which does not count them."""
    return None if labels["outcome"] == "refused" else {"finished_reason": labels["outcome"]}


def from_zero(labels: Labels) -> Labels:
    """vLLM counts the positions of a draft from 0, we from 1."""
    return {**labels, "position": str(int(labels["position"]) - 1)}


class VllmName(NamedTuple):
    """A name, without `vllm:`, and vLLM's labels made from ours; None for what vLLM does not count."""

    name: str
    relabel: Callable[[Labels], Labels | None] = same

    def copy(self, family: Metric, model_name: str) -> Metric:
        """The family under this name; series that differ only in labels which vLLM does not have are added up."""
        name = f"vllm:{self.name}"
        totals: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for sample in family.samples:
            labels = self.relabel(sample.labels)
            if labels is not None:
                series = name + sample.name.removeprefix(family.name), tuple(labels.items())
                totals[series] = totals.get(series, 0.0) + sample.value
        copied = Metric(name, f"{family.documentation} vLLM's name for {family.name}.", family.type)
        for (sampled, pairs), value in totals.items():
            copied.add_sample(sampled, {"model_name": model_name, **dict(pairs)}, value)
        return copied
