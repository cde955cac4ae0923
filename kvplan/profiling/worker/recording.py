"""One profile inside the worker: engine made ready, requests served under the recorder's eyes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from kvplan.machine.cpu_meter import CpuMeter
from kvplan.profiling.protocol import ProfileOrder, ProfileResult
from kvplan.profiling.steps import MemoryParts, ProfiledRequest, RecordingJson
from kvplan.profiling.worker.recorder import StepRecorder
from kvplan.runs.columns import Row
from kvplan.sweeps.worker.engine_host import EngineHost, Send, stage_message, timed_request
from kvplan.sweeps.worker.failures import classify_failure
from kvplan.sweeps.worker.load_generator import LoadGenerator, Recording
from kvplan.sweeps.worker.metrics import RequestTrace, StepSample
from kvplan.sweeps.worker.protocol import Stage, TrialOrder
from kvplan.sweeps.worker.trial import memory_figures, serving_row
from kvplan.sweeps.worker.watch import TrialWatch
from kvplan_engine import Engine, EngineError
from kvplan_engine.device import process_memory


def run_profile(host: EngineHost, order: ProfileOrder, send: Send) -> ProfileResult:
    """Run the order. A failure that belongs to the setting becomes a status; any other is raised."""
    stage: Stage = "loading"
    row: Row = {}
    trial = order.trial
    try:
        with allocations_recorded(order.allocations_path):
            engine = host.make_ready(trial, send)
            row |= memory_figures(engine)
            stage = "serving"
            host.warm_up(engine, trial, send)
            watch = TrialWatch(trial, send, host)
            send(stage_message("serving", watch.memory_share()))
            served, recording = _serve(engine, trial, watch)
        return {"type": "result", "row": row | served, "recording": recording}
    except (EngineError, MemoryError, RuntimeError, OSError) as error:
        failure = classify_failure(error, stage)
        if failure is None:
            raise
    return {"type": "result", "row": row | failure, "recording": None}


def _serve(engine: Engine, order: TrialOrder, watch: TrialWatch) -> tuple[Row, RecordingJson]:
    requests = [timed_request(request, order, watch.host.adapters) for request in order.requests]
    before, meter = engine.get_stats(), CpuMeter()
    hits_before = engine.prefix_cache.num_hit_tokens
    recorder = StepRecorder(engine, lambda: _memory_in_use(watch))
    watch.start(engine)
    if engine.decoder.layer_run is not None:
        engine.decoder.layer_run.time_operations()
    engine.observe_steps(recorder)

    def see_step(sample: StepSample) -> None:
        recorder.see_step(sample)
        watch.see_step(sample)

    served = LoadGenerator(
        engine,
        requests,
        max_concurrency=order.max_concurrency,
        refused=(EngineError,),
        on_step=see_step,
        count_cached_tokens=lambda: engine.prefix_cache.num_hit_tokens - hits_before,
    ).run()
    engine.observe_steps(None)
    row: Row = {"other_cpu_pct": meter.other_cpu_pct()}
    row |= serving_row(served, engine, before, order.settings["max_model_len"])
    row |= watch.peak_memory()
    return row, _recording(recorder, served, engine)


def _memory_in_use(watch: TrialWatch) -> int:
    """Resident memory above what it was before the engine; on a GPU, what torch's allocator has given out."""
    if watch.on_gpu:
        return torch.cuda.memory_allocated()
    return process_memory.resident_memory_bytes() - watch.host.resident_at_start


def _recording(recorder: StepRecorder, served: Recording, engine: Engine) -> RecordingJson:
    return {
        "steps": recorder.columns,
        "phase_seconds": recorder.phase_seconds,
        "operation_seconds": recorder.operation_seconds,
        "requests": [_request(trace) for trace in served.traces],
        "memory": _memory_parts(engine),
        "duration_seconds": served.duration_seconds,
        "num_threads": torch.get_num_threads(),
        "device_is_asynchronous": bool(engine.device.is_asynchronous),
    }


def _request(trace: RequestTrace) -> ProfiledRequest:
    times = trace.token_times
    return {
        "request_id": trace.request_id,
        "num_prompt_tokens": trace.num_prompt_tokens,
        "num_output_tokens": len(times),
        "arrival_seconds": trace.arrival_seconds,
        "first_token_seconds": times[0] if times else None,
        "last_token_seconds": times[-1] if times else None,
    }


def _memory_parts(engine: Engine) -> MemoryParts:
    memory = engine.memory
    return {
        "device_total_bytes": memory.device_total_bytes,
        "budget_bytes": memory.budget_bytes,
        "weight_bytes": memory.weight_bytes,
        "workspace_bytes": memory.activation_bytes,
        "overhead_bytes": memory.overhead_bytes,
        "graph_bytes": memory.graph_bytes,
        "kv_pool_bytes": memory.kv_pool_bytes,
        "block_bytes": memory.block_bytes,
        "num_blocks": memory.num_blocks,
        "block_size": memory.block_size,
    }


_MOST_ENTRIES: Final = 100_000


@contextmanager
def allocations_recorded(path: str | None) -> Iterator[None]:
    """Record what the allocator does meanwhile and write it to ``path``; nothing if that is None."""
    if path is None:
        yield
        return
    memory = torch.cuda.memory
    memory._record_memory_history(max_entries=_MOST_ENTRIES)
    try:
        yield
    finally:
        memory._dump_snapshot(path)
        memory._record_memory_history(enabled=None)
