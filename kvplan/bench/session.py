"""The parent's end of a bench: decide what to run, start the worker, collect the results. No torch."""

from __future__ import annotations

import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from kvplan import __version__
from kvplan.bench.figures import Experiment
from kvplan.bench.options import EXPERIMENTS, ON_ONE_LAYER, BenchOrder, Message
from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.dtypes import serving_dtype
from kvplan.estimate.weights import size_weights
from kvplan.machine.device import AskDevice, Device, detect_device
from kvplan.sweeps.worker.early import ask_own_worker
from kvplan.units import format_bytes
from kvplan.workers.process import WorkerDied, WorkerProcess

SCHEMA: Final = "kvplan.bench/1"
WORKER_COMMAND: Final = (sys.executable, "-m", "kvplan.bench.worker")
_KILLED: Final = "the system does so where memory is short: use a smaller model or less --device-memory"
# If other processes use more of the CPU than this, times are not worth quoting.
NOISY_PCT: Final = 10.0


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """A bench that is ready to run."""

    order: BenchOrder
    device: Device


@dataclass(frozen=True, slots=True)
class BenchOutcome:
    """The results of a bench, what computed them (see the column ``kernels``), and how quiet the machine was."""

    plan: BenchPlan
    experiments: tuple[Experiment, ...]
    seconds: float
    other_cpu_pct: float | None
    torch_version: str
    num_threads: int
    kernels: str | None = None

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
                "kernels": self.kernels,
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
    ask: AskDevice = ask_own_worker,
) -> BenchPlan:
    """Decide everything, start nothing; ``ask`` a worker where this machine may have a GPU.

    UsageError for an unknown experiment, KvplanError for an unknown model.
    """
    unknown = [name for name in only if name not in EXPERIMENTS]
    if unknown:
        raise UsageError(f"Unknown experiment '{unknown[0]}'.", hint="one of " + ", ".join(EXPERIMENTS))
    spec = resolve_model(model)
    detected = detect_device(device, device_memory, weight_bytes=4 * spec.num_parameters, ask=ask)
    engine = {
        "model": dict(spec.raw_config),
        "device": detected.kind,
        "device_memory": detected.engine_memory_bytes,
        "dtype": dtype,
        "load_format": "dummy",
        "seed": seed,
    }
    names = tuple(name for name in EXPERIMENTS if not only or name in only)
    if set(names) - set(ON_ONE_LAYER):
        _check_room(spec, dtype, detected)
    rounds = num_rounds or (1 if is_quick else 2)
    return BenchPlan(BenchOrder(engine, spec.served_id, names, rounds, is_quick, seed), detected)


def _check_room(spec: ModelSpec, dtype: str, device: Device) -> None:
    """KvplanError for weights that the device cannot hold: they would be made in vain, or the system end the worker."""
    weights, memory = size_weights(spec, serving_dtype(spec.dtype, dtype)).total_bytes, device.memory_bytes
    if weights < memory:
        return
    raise KvplanError(
        f"{spec.served_id} has {format_bytes(weights)} of weights, and the device {format_bytes(memory)} of memory.",
        hint=f"use a smaller model, or --only {ON_ONE_LAYER[0]} or {ON_ONE_LAYER[1]}, which run one layer of it",
    )


def run_bench(
    plan: BenchPlan,
    on_start: Callable[[str], None],
    on_result: Callable[[Experiment], None],
    on_notice: Callable[[str], None] = lambda text: None,
) -> BenchOutcome:
    """Run the worker to its end. on_notice: takes a line for the user.

    KvplanError if it fails; on an interruption it is killed first.
    """
    started = time.perf_counter()
    experiments: list[Experiment] = []
    with tempfile.TemporaryDirectory(prefix="kvplan-bench-") as folder:
        process = WorkerProcess(WORKER_COMMAND, Path(folder) / "worker.log")
        try:
            process.send(plan.order.as_json())
            while (message := cast(Message, process.receive()))["type"] != "done":
                if message["type"] == "error":
                    raise KvplanError(_sentence(message["message"]), hint=message["hint"])
                if message["type"] == "notice":
                    on_notice(message["text"])
                elif message["type"] == "start":
                    on_start(message["experiment"])
                elif message["type"] == "result":
                    experiments.append(Experiment.from_json(message["experiment"]))
                    on_result(experiments[-1])
        except WorkerDied as death:
            hint = _KILLED if death.signal_number == signal.SIGKILL else None
            raise KvplanError(str(death), hint=hint) from None
        finally:
            process.kill()
    return BenchOutcome(
        plan=plan,
        experiments=tuple(experiments),
        seconds=time.perf_counter() - started,
        other_cpu_pct=message["other_cpu_pct"],
        torch_version=message["torch_version"],
        num_threads=message["num_threads"],
        kernels=message["kernels"],
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
