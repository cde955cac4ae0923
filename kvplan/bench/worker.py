"""The worker process of a bench: runs the experiments of one order and ends.

Started as ``python -m kvplan.bench.worker``; see :mod:`kvplan.bench.options`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvplan.bench import latency_experiments, memory_experiments, speed_experiments
from kvplan.bench.figures import Experiment
from kvplan.bench.options import (
    BenchOrder,
    BenchScale,
    DoneMessage,
    ErrorMessage,
    ExperimentMessage,
    NoticeMessage,
    StartMessage,
)
from kvplan.bench.serving import warm_up
from kvplan.machine.host import CpuMeter
from kvplan.workers.channel import WorkerChannel, quick_imports
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


def main() -> None:
    channel = WorkerChannel.open()
    order = BenchOrder.from_json(channel.receive())
    # The engine is imported here, after stdout is safe and while a thread watches for the parent's death.
    from kvplan_engine import EngineError

    try:
        _run(order, channel)
    except EngineError as error:
        refused: ErrorMessage = {"type": "error", "message": error.message, "hint": error.hint}
        channel.send(refused)
    channel.wait_for_the_end()


def _run(order: BenchOrder, channel: WorkerChannel) -> None:
    with quick_imports():
        import torch

        from kvplan.bench.serving import KERNELS_USED
        from kvplan.sweeps.worker.engine_host import cpu_kernels_notice, unused_kernels_notice

    _tell(cpu_kernels_notice() if order.engine["device"] == "cpu" else None, channel)
    meter = CpuMeter()
    runner = ExperimentRunner(order)
    for name in order.experiments:
        start: StartMessage = {"type": "start", "experiment": name}
        channel.send(start)
        result: ExperimentMessage = {"type": "result", "experiment": runner.run(name).as_json()}
        channel.send(result)
    if order.engine["device"] == "cpu":
        for kernels, dtype in KERNELS_USED.items():
            _tell(unused_kernels_notice(kernels, dtype), channel)
    done: DoneMessage = {
        "type": "done",
        "torch_version": str(torch.__version__),
        "num_threads": torch.get_num_threads(),
        "kernels": ", ".join(KERNELS_USED) or None,
        "other_cpu_pct": meter.other_cpu_pct(),
    }
    channel.send(done)


def _tell(text: str | None, channel: WorkerChannel) -> None:
    if text is not None:
        notice: NoticeMessage = {"type": "notice", "text": text}
        channel.send(notice)


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
            if self._engine is not None:
                self._engine.close()
                self._engine = None
            return latency_experiments.tiers(
                self._order, self._scale, lambda: speed_experiments.make_full_engine(self._order)
            )
        if self._engine is None:
            self._engine = speed_experiments.make_full_engine(self._order)
            warm_up(self._engine)
        return _ON_FULL_MODEL[name](self._order, self._scale, self._engine)


if __name__ == "__main__":
    main()
