"""Sweep directories as a device of known coefficients would have left them: rows, series, manifest."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kvplan.catalog.models import resolve_model
from kvplan.estimate.speed.simulation.batching import simulate_requests
from kvplan.estimate.speed.simulation.interface import BatchLimits, Simulation
from kvplan.estimate.speed.steps.step_time import Speed, StepTimes, step_shape
from kvplan.runs.rows import empty_row
from kvplan.sweeps.worker.metrics import RequestTrace, serving_figures
from kvplan.workload.lengths import Lengths
from kvplan.workload.requests import WorkloadSpec, clip_requests, generate_requests

TRUTH = Speed(
    step_seconds=0.9e-3,
    layer_seconds=0.3e-3,
    sequence_seconds=0.12e-3,
    bandwidth=17e9,
    flops=110e9,
    kv_bandwidth=9e9,
    attention_flops=35e9,
    sharpness=1.0,
)
WORKLOAD = WorkloadSpec(12, Lengths(16, 200), Lengths(4, 24), seed=3)
SEQS, TOKENS = (1, 2, 4, 9, 16), (48, 96, 512)


def traces_of(simulated: Simulation) -> list[RequestTrace]:
    """The simulation as a recording: when each token came."""
    ends = simulated.loads.end_seconds
    traces = []
    for index, request in enumerate(simulated.requests):
        times = [ends[step] for first, stop in request.token_steps for step in range(first, stop)]
        traces.append(RequestTrace(str(index), request.num_prompt_tokens, request.arrival_seconds, times, True))
    return traces


def write_sweep(
    directory: Path,
    *,
    model: str = "gpt2",
    speed: Speed = TRUTH,
    workload: WorkloadSpec = WORKLOAD,
    noise: float = 0.0,
    slow_share: float = 0.0,
    device_name: str = "Test CPU",
    seqs: Sequence[int] = SEQS,
    tokens: Sequence[int] = TOKENS,
    num_runs: int = 1,
    with_series: bool = True,
) -> Path:
    """Every step takes what ``speed`` says, times log-normal noise, and in a share of the steps five times as long."""
    directory.mkdir(parents=True)
    rng, spec = random.Random(7), resolve_model(model)
    lines = []
    for run in range(1, num_runs + 1):
        for num_seqs in seqs:
            for budget in tokens:
                settings = {"max_num_seqs": num_seqs, "max_num_batched_tokens": budget}
                lines.append(_record(spec, speed, workload, settings, run, device_name, noise, slow_share, rng))
    if not with_series:
        for line in lines:
            line["series"] = None
    (directory / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    manifest = {
        "schema": "kvplan.manifest/1",
        "run_id": directory.name,
        "created_at": "2026-01-02T03:04:05+00:00",
        "options": {"model": model},
        "device": {"kind": "cpu", "name": device_name, "memory_bytes": 4 << 30, "num_cores": 2},
        "workload": {"text": workload.as_text(), "spec": workload.as_json()},
        "versions": {"kvplan": "0", "kvplan_engine": "0.1", "torch": "0"},
        "commit": None,
    }
    (directory / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return directory


class _NoisyClock:
    """Steps as long as the device says, with its noise."""

    def __init__(self, times: StepTimes, noise: float, slow_share: float, rng: random.Random) -> None:
        self._times, self._noise, self._slow_share, self._rng = times, noise, slow_share, rng

    def seconds(self, *load: float) -> float:
        factor = math.exp(self._rng.gauss(0, self._noise)) if self._noise else 1.0
        return self._times.seconds(*load) * factor * (5 if self._rng.random() < self._slow_share else 1)  # type: ignore[arg-type]


def _record(
    spec: Any,
    speed: Speed,
    workload: WorkloadSpec,
    settings: dict[str, int],
    run: int,
    device_name: str,
    noise: float,
    slow_share: float,
    rng: random.Random,
) -> dict[str, Any]:
    block_size, num_blocks, max_model_len = 16, 400, 320
    layer = spec.layers[0].mixer
    block_bytes = spec.num_layers * layer.cache_elements_per_token * 4 * block_size
    shape = step_shape(spec, element_bytes=4, kv_bytes_per_token=block_bytes / block_size)
    limits = BatchLimits(settings["max_num_seqs"], settings["max_num_batched_tokens"], block_size, num_blocks)
    requests = clip_requests(generate_requests(workload), max_model_len).requests
    clock = _NoisyClock(StepTimes(shape, speed), noise, slow_share, rng)
    simulated = simulate_requests(requests, limits, clock, max_concurrency=workload.max_concurrency)
    row = empty_row() | serving_figures(traces_of(simulated), simulated.seconds)
    row |= settings
    row |= {
        "trial_id": f"{settings['max_num_seqs']}-{settings['max_num_batched_tokens']}-{run}",
        "run_number": run,
        "model_id": spec.id,
        "device": "cpu",
        "device_name": device_name,
        "device_memory_bytes": 4 << 30,
        "dtype": "float32",
        "kv_cache_dtype": "float32",
        "status": simulated.status,
        "gpu_memory_utilization": 0.9,
        "block_size": block_size,
        "max_model_len": max_model_len,
        "num_blocks_total": num_blocks,
        "block_bytes": block_bytes,
        "request_rate": "inf" if math.isinf(workload.request_rate) else workload.request_rate,
        "max_concurrency": workload.max_concurrency,
        "num_steps": len(simulated.loads),
        "other_cpu_pct": 1.0,
    }
    return {"schema": "kvplan.trial/1", "row": row, "series": _series(simulated)}


def _series(simulated: Simulation, most_points: int = 400) -> dict[str, list[float]]:
    """Points of a trial as the sweep stores them: long trials have several steps in one."""
    stride = -(-len(simulated.loads) // most_points)
    starts = np.arange(0, len(simulated.loads), stride)
    steps = np.add.reduceat(np.asarray(simulated.loads.step_seconds), starts)
    ends = [simulated.loads.end_seconds[min(start + stride, len(simulated.loads)) - 1] for start in starts]
    return {"seconds": ends, "step_seconds": [float(value) for value in steps]}


def tied(speed: Speed) -> Speed:
    """The same device, its overhead per step in the ratio to its layers' that one model's rows are read with."""
    return replace(speed, step_seconds=2 * speed.layer_seconds)
