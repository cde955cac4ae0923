"""Prometheus' families with a sample for each engine, under vLLM's labels ``model_name`` and ``engine``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from kvplan_engine.server.metrics.histogram import Histogram
from kvplan_engine.server.metrics.state import EngineMetrics

Read = Callable[[EngineMetrics], float]
ReadBy = Callable[[EngineMetrics], Mapping[str, float]]


class EngineFamilies:
    """Makes families that show a number of each of ``engines``, which are numbered from 0 on."""

    def __init__(self, engines: Sequence[EngineMetrics], model_name: str) -> None:
        self._engines = engines
        self._model_name = model_name

    def _labelled(self) -> list[tuple[list[str], EngineMetrics]]:
        return [([self._model_name, str(number)], engine) for number, engine in enumerate(self._engines)]

    def has_any(self, read: Callable[[EngineMetrics], object]) -> bool:
        """Whether any engine has something to show."""
        return any(map(read, self._engines))

    def gauge(self, name: str, help: str, read: Read) -> Metric:
        family = GaugeMetricFamily(name, help, labels=["model_name", "engine"])
        for labels, engine in self._labelled():
            family.add_metric(labels, read(engine))
        return family

    def gauges_by(self, name: str, help: str, label: str, read: ReadBy) -> Metric:
        """A sample for each value of ``label``."""
        family = GaugeMetricFamily(name, help, labels=["model_name", "engine", label])
        for labels, engine in self._labelled():
            for kind, value in read(engine).items():
                family.add_metric([*labels, kind], value)
        return family

    def counter(self, name: str, help: str, read: Read) -> Metric:
        family = CounterMetricFamily(name, help, labels=["model_name", "engine"])
        for labels, engine in self._labelled():
            family.add_metric(labels, read(engine))
        return family

    def counters_by(self, name: str, help: str, label: str, read: ReadBy) -> Metric:
        """A sample for each value of ``label``."""
        family = CounterMetricFamily(name, help, labels=["model_name", "engine", label])
        for labels, engine in self._labelled():
            for kind, value in read(engine).items():
                family.add_metric([*labels, kind], value)
        return family

    def histogram(self, name: str, help: str, read: Callable[[EngineMetrics], Histogram]) -> Metric:
        family = HistogramMetricFamily(name, help, labels=["model_name", "engine"])
        for labels, engine in self._labelled():
            found = read(engine)
            family.add_metric(labels, list(found.cumulative()), found.total)
        return family
