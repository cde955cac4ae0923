"""Runs experiments by name, in the worker process: which engine each of them gets, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvplan.bench import latency_experiments, memory_experiments, speed_experiments
from kvplan.bench.figures import Experiment
from kvplan.bench.options import BenchOrder, BenchScale
from kvplan.bench.serving import warm_up
from kvplan_engine import Engine

# With an engine of their own, of a model cut down to one layer.
_ON_SHORT_MODEL: Final[Mapping[str, Callable[[BenchOrder, BenchScale], Experiment]]] = {
    "reservation": memory_experiments.reservation,
    "sharing": memory_experiments.sharing,
}
# With one engine of the whole model, which each of them reconfigures.
_ON_FULL_MODEL: Final[Mapping[str, Callable[[BenchOrder, BenchScale, Engine], Experiment]]] = {
    "scheduling": speed_experiments.scheduling,
    "prefix": speed_experiments.prefix,
    "chunking": latency_experiments.chunking,
    "swap": speed_experiments.swap,
    "transformers": speed_experiments.against_transformers,
}


class ExperimentRunner:
    """The engine of the whole model is made when the first experiment needs it, and kept for the next ones."""

    def __init__(self, order: BenchOrder) -> None:
        self._order = order
        self._scale = BenchScale.of(order.is_quick)
        self._engine: Engine | None = None

    def run(self, name: str) -> Experiment:
        """Raises what the engine raises."""
        started = time.perf_counter()
        experiment = self._measure(name)
        return replace(experiment, seconds=time.perf_counter() - started)

    def _measure(self, name: str) -> Experiment:
        if name in _ON_SHORT_MODEL:
            return _ON_SHORT_MODEL[name](self._order, self._scale)
        if name == "tiers":  # with engines of its own, which it closes and starts again
            self._close_engine()
            return latency_experiments.tiers(
                self._order, self._scale, lambda: speed_experiments.make_full_engine(self._order)
            )
        return _ON_FULL_MODEL[name](self._order, self._scale, self._full_engine())

    def _full_engine(self) -> Engine:
        if self._engine is None:
            self._engine = speed_experiments.make_full_engine(self._order)
            warm_up(self._engine)
        return self._engine

    def _close_engine(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
