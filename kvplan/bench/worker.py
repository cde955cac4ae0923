"""The worker process of a bench: one order on stdin, one JSON object a line on stdout.

    {"type": "start", "experiment"}    {"type": "result", "experiment": {...}}    {"type": "done", ...}
    {"type": "error", "message", "hint"}

Started as ``python -m kvplan.bench.worker``. Whatever else is printed to stdout goes to stderr. It ends when its stdin
is closed, by intention or because the parent is gone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import replace
from typing import Any, BinaryIO

from kvplan.bench.figures import Experiment
from kvplan.bench.options import BenchOrder, Scale
from kvplan.machine.device import CpuMeter


def main() -> None:
    output = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    order = BenchOrder.from_json(json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    from kvplan_engine import EngineError

    try:
        _run(order, output)
    except EngineError as error:
        _send(output, type="error", message=error.message, hint=error.hint)


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(1)


def _run(order: BenchOrder, output: BinaryIO) -> None:
    import torch

    from kvplan.bench import latency_experiments, memory_experiments, speed_experiments
    from kvplan.bench.serving import warm_up

    scale = Scale.of(order.is_quick)
    meter = CpuMeter()
    on_short_model = {"reservation": memory_experiments.reservation, "sharing": memory_experiments.sharing}
    on_full_model = {
        "scheduling": speed_experiments.scheduling,
        "prefix": speed_experiments.prefix,
        "chunking": latency_experiments.chunking,
        "swap": speed_experiments.swap,
        "transformers": speed_experiments.against_transformers,
    }
    engine: Any = None
    for name in order.experiments:
        _send(output, type="start", experiment=name)
        started = time.perf_counter()
        if name in on_short_model:
            found: Experiment = on_short_model[name](order, scale)
        elif name == "tiers":  # with engines of its own, which it closes and starts again
            if engine is not None:
                engine.close()
                engine = None
            found = latency_experiments.tiers(order, scale, lambda: speed_experiments.make_full_engine(order))
        else:
            if engine is None:
                engine = speed_experiments.make_full_engine(order)
                warm_up(engine)
            found = on_full_model[name](order, scale, engine)
        found = replace(found, seconds=time.perf_counter() - started)
        _send(output, type="result", experiment=found.as_json())
    _send(
        output,
        type="done",
        torch_version=str(torch.__version__),
        num_threads=torch.get_num_threads(),
        other_cpu_pct=meter.other_cpu_pct(),
    )


def _send(output: BinaryIO, **message: Any) -> None:
    output.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")


if __name__ == "__main__":
    main()
