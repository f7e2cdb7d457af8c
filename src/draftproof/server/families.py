"""Metric families in a registry of their own, each exported under our name, and under vLLM's if it has one there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.registry import Collector

from draftproof.server.vllm_names import VllmName

Kept = TypeVar("Kept", Counter, Gauge, Histogram)


class Family(NamedTuple):
    """A metric with the names of its labels, and its names in vLLM."""

    metric: Counter | Gauge | Histogram
    labels: tuple[str, ...]
    vllm: tuple[VllmName, ...]


class Described(NamedTuple):
    """What a metric is, for the docs."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    vllm: tuple[str, ...]


class Families(Collector):
    """Opens metrics, and collects them under all their names; `model_name` is a label of vLLM's."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._families: list[Family] = []
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def counter(
        self, name: str, help: str, *, labels: Sequence[str] = (), vllm: Iterable[VllmName | str] = ()
    ) -> Counter:
        """A number that only grows; `_total` is added to its name."""
        return self._keep(Counter(f"draftproof_{name}", help, labels, registry=None), labels, vllm)

    def gauge(self, name: str, help: str, *, vllm: Iterable[VllmName | str] = ()) -> Gauge:
        """A number as it is now."""
        return self._keep(Gauge(f"draftproof_{name}", help, registry=None), (), vllm)

    def histogram(
        self, name: str, help: str, buckets: Sequence[float], *, vllm: Iterable[VllmName | str] = ()
    ) -> Histogram:
        """Numbers counted by the buckets that they fall into, given by their upper limits."""
        return self._keep(Histogram(f"draftproof_{name}", help, buckets=buckets, registry=None), (), vllm)

    def _keep(self, metric: Kept, labels: Sequence[str], vllm: Iterable[VllmName | str]) -> Kept:
        names = tuple(VllmName(name) if isinstance(name, str) else name for name in vllm)
        self._families.append(Family(metric, tuple(labels), names))
        return metric

    def collect(self) -> Iterator[Metric]:
        """What the registry asks for: every family under all its names, without the times when series were opened."""
        for metric, _, names in self._families:
            for family in metric.collect():
                family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
                yield family
                yield from (name.copy(family, self._model_name) for name in names)

    def described(self) -> Iterator[Described]:
        """Every family as it is exported, in order."""
        for metric, labels, names in self._families:
            for family in metric.collect():
                end = "_total" if family.type == "counter" else ""
                vllm = tuple(f"vllm:{name.name}{end}" for name in names)
                yield Described(family.name + end, family.type, labels, family.documentation, vllm)

    def text(self) -> bytes:
        """All families in Prometheus' text format."""
        return generate_latest(self.registry)
