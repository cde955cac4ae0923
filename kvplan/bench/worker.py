"""The worker process of a bench: runs the experiments of one order and ends.

Started as ``python -m kvplan.bench.worker``; see :mod:`kvplan.bench.options`.
"""

from __future__ import annotations

from kvplan.bench.options import (
    BenchOrder,
    DoneMessage,
    ErrorMessage,
    ExperimentMessage,
    NoticeMessage,
    StartMessage,
)
from kvplan.machine.host import CpuMeter
from kvplan.workers.channel import WorkerChannel, quick_imports


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

        from kvplan.bench.experiments import ExperimentRunner
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


if __name__ == "__main__":
    main()
