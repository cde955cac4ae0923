"""The parent's end of a bench: decide what to run, start the worker, collect what it finds. No torch."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvplan import __version__
from kvplan.bench.figures import Experiment
from kvplan.bench.options import EXPERIMENTS, BenchOrder
from kvplan.catalog.models import resolve_model
from kvplan.errors import KvplanError, UsageError
from kvplan.machine.device import SweepDevice, detect_device

SCHEMA = "kvplan.bench/1"
WORKER_COMMAND = (sys.executable, "-m", "kvplan.bench.worker")
# Above this share of the machine's processor time taken by others, times are not worth quoting.
NOISY_PCT = 10.0


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """A bench that is ready to run."""

    order: BenchOrder
    device: SweepDevice


@dataclass(frozen=True, slots=True)
class BenchOutcome:
    """What a bench found, and how quiet the machine was meanwhile."""

    plan: BenchPlan
    experiments: tuple[Experiment, ...]
    seconds: float
    other_cpu_pct: float | None
    torch_version: str
    num_threads: int

    def as_json(self) -> dict[str, Any]:
        order, device = self.plan.order, self.plan.device
        return {
            "schema": SCHEMA,
            "model": order.model_name,
            "weights": "random",
            "device": {"kind": device.kind, "name": device.name, "memory_bytes": device.memory_bytes},
            "settings": {
                "dtype": order.engine["dtype"],
                "num_rounds": order.num_rounds,
                "quick": order.is_quick,
                "seed": order.seed,
            },
            "machine": {
                "num_cores": device.num_cores,
                "num_threads": self.num_threads,
                "other_cpu_pct": self.other_cpu_pct,
                "platform": platform.platform(),
            },
            "versions": {"kvplan": __version__, "torch": self.torch_version, "python": platform.python_version()},
            "seconds": self.seconds,
            "experiments": [experiment.as_json() for experiment in self.experiments],
        }


def make_plan(
    model: str,
    *,
    device: str,
    device_memory: int | None,
    dtype: str,
    only: Sequence[str],
    num_rounds: int | None,
    is_quick: bool,
    seed: int,
) -> BenchPlan:
    """Everything decided, nothing started. UsageError for an unknown experiment, KvplanError for an unknown model."""
    unknown = [name for name in only if name not in EXPERIMENTS]
    if unknown:
        raise UsageError(f"There is no experiment called {unknown[0]}.", hint="one of " + ", ".join(EXPERIMENTS))
    spec = resolve_model(model)
    found = detect_device(device, device_memory, weight_bytes=4 * spec.num_parameters)
    engine = {
        "model": dict(spec.raw_config),
        "device": found.kind,
        "device_memory": found.engine_memory_bytes,
        "dtype": dtype,
        "load_format": "dummy",
        "seed": seed,
    }
    names = tuple(name for name in EXPERIMENTS if not only or name in only)
    rounds = num_rounds or (1 if is_quick else 2)
    return BenchPlan(BenchOrder(engine, spec.id, names, rounds, is_quick, seed), found)


def run_bench(
    plan: BenchPlan, on_start: Callable[[str], None], on_result: Callable[[Experiment], None]
) -> BenchOutcome:
    """Run the worker to its end. KvplanError when it fails; on an interruption it is ended first."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            list(WORKER_COMMAND), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=_environment()
        )
        try:
            experiments, last = _converse(process, plan.order, on_start, on_result)
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
        if last["type"] != "done":
            raise KvplanError(_sentence(last.get("message") or _last_line(log)), hint=last.get("hint"))
    return BenchOutcome(
        plan=plan,
        experiments=experiments,
        seconds=time.perf_counter() - started,
        other_cpu_pct=last["other_cpu_pct"],
        torch_version=last["torch_version"],
        num_threads=last["num_threads"],
    )


def _converse(
    process: subprocess.Popen[bytes],
    order: BenchOrder,
    on_start: Callable[[str], None],
    on_result: Callable[[Experiment], None],
) -> tuple[tuple[Experiment, ...], dict[str, Any]]:
    """Send the order and listen. What the worker said last tells how it ended."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(order.as_json()).encode() + b"\n")
    process.stdin.flush()
    experiments: list[Experiment] = []
    message: dict[str, Any] = {"type": "nothing"}
    for line in process.stdout:
        message = json.loads(line)
        if message["type"] == "start":
            on_start(message["experiment"])
        elif message["type"] == "result":
            experiments.append(Experiment.from_json(message["experiment"]))
            on_result(experiments[-1])
    return tuple(experiments), message


def _last_line(log: Any) -> str:
    log.seek(0)
    lines = [line for line in log.read().decode("utf-8", errors="replace").splitlines() if line.strip()]
    return "the bench's worker ended early" + (f": {lines[-1].strip()[:300]}" if lines else "") + "."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _environment() -> dict[str, str]:
    """The parent's environment, with its import path: the worker must find the same kvplan and the same engine."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
