"""One profile inside the worker: engine made ready, requests served under the recorder's eyes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

import torch

from kvplan.machine.host import CpuMeter
from kvplan.profiling.protocol import ProfileOrder, ProfileResult
from kvplan.profiling.steps import PHASES, MemoryParts, ProfiledRequest, RecordingJson, StepColumns
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
from kvplan_engine.execution.loop.step_runner import Phase
from kvplan_engine.requests.step_plan import StepPlan

_MEMORY_READING_SECONDS: Final = 0.02


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


class _Started(NamedTuple):
    """What a step computes (see StepColumns), and used, cached and free blocks once it has been started."""

    tokens: tuple[int, int, int, int]
    blocks: tuple[int, int, int]


class StepRecorder:
    """An observer of one engine's steps (``kvplan_engine.execution.loop.step_runner.StepObserver``).

    read_memory: bytes in use now; asked for at most 50 times per second, because the system takes a while to answer.
    """

    def __init__(self, engine: Engine, read_memory: Callable[[], int]) -> None:
        self._engine = engine
        self._read_memory = read_memory
        self._next_reading = 0.0
        self._mark = 0.0
        self._phases: dict[str, float] = {}
        self._tokens = (0, 0, 0, 0)
        self._started: deque[_Started] = deque()  # steps whose tokens have not come yet
        self._operations_before: Mapping[str, float] = {}
        self.phase_seconds: dict[str, list[float]] = {name: [] for name in PHASES}
        self.operation_seconds: dict[str, list[float]] = {}
        self.columns = StepColumns(
            began_seconds=[],
            step_seconds=[],
            prefill_tokens=[],
            decode_tokens=[],
            prefill_seqs=[],
            decode_seqs=[],
            new_tokens=[],
            num_running=[],
            num_waiting=[],
            used_blocks=[],
            cached_blocks=[],
            free_blocks=[],
            used_tokens=[],
            num_preemptions=[],
            process_bytes=[],
        )

    # ---- told by the engine

    def began(self) -> None:
        self._mark = time.perf_counter()

    def planned(self, plan: StepPlan) -> None:
        decode_seqs = len(plan.decodes)
        prefill_seqs = len(plan.chunks)
        self._tokens = (plan.num_tokens - decode_seqs, decode_seqs, prefill_seqs, decode_seqs)

    def ended(self, phase: Phase) -> None:
        now = time.perf_counter()
        self._phases[phase] = self._phases.get(phase, 0.0) + now - self._mark
        if phase == "count":  # the moment that StepStats stands for: finished sequences still hold their blocks
            pool = self._engine.scheduler.pool
            blocks = (pool.num_used_blocks, pool.num_free_cached_blocks, pool.num_free_blocks)
            self._started.append(_Started(self._tokens, blocks))
        self._mark = now

    # ---- told by the load generator

    def see_step(self, sample: StepSample) -> None:
        """One step has ended: its tokens have come, in this call of the engine's or a later one than started it."""
        columns, step = self.columns, self._started.popleft()
        used, cached, free = step.blocks
        prefill_tokens, decode_tokens, prefill_seqs, decode_seqs = step.tokens
        columns["began_seconds"].append(round(sample.seconds - sample.step_seconds, 7))
        columns["step_seconds"].append(round(sample.step_seconds, 7))
        columns["prefill_tokens"].append(prefill_tokens)
        columns["decode_tokens"].append(decode_tokens)
        columns["prefill_seqs"].append(prefill_seqs)
        columns["decode_seqs"].append(decode_seqs)
        columns["new_tokens"].append(sample.num_new_tokens)
        columns["num_running"].append(sample.num_running)
        columns["num_waiting"].append(sample.num_waiting)
        columns["used_blocks"].append(used)
        columns["cached_blocks"].append(cached)
        columns["free_blocks"].append(free - cached)
        columns["used_tokens"].append(sample.num_used_tokens)
        columns["num_preemptions"].append(self._engine.stats.num_preemptions)
        columns["process_bytes"].append(self._memory_now(sample.seconds))
        for name, seconds in self.phase_seconds.items():
            seconds.append(round(self._phases.get(name, 0.0), 7))
        self._phases = {}
        self._note_operations()

    def _memory_now(self, seconds: float) -> int | None:
        if seconds < self._next_reading:
            return None
        self._next_reading = seconds + _MEMORY_READING_SECONDS
        return self._read_memory()

    def _note_operations(self) -> None:
        run = self._engine.decoder.layer_run
        now = {} if run is None else dict(run.operation_seconds())
        for name, seconds in now.items():
            spent = seconds - self._operations_before.get(name, 0.0)
            self.operation_seconds.setdefault(name, []).append(round(spent, 7))
        self._operations_before = now
