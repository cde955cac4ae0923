"""One trial inside the worker: engine made ready, workload served, row filled. Only the worker process imports this."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, cast

import torch

from kvplan.machine.host import CpuMeter, cpu_seconds_of
from kvplan.runs.columns import COLUMNS, Row
from kvplan.runs.directory import Series
from kvplan.runs.request_lines import RequestLine, longest_gap, rounded
from kvplan.sweeps.worker.engine_host import EngineHost, Send, stage_message, timed_request
from kvplan.sweeps.worker.failures import classify_failure
from kvplan.sweeps.worker.load_generator import LoadGenerator, Recording, ServingEngine, ServingStats, StepOutput
from kvplan.sweeps.worker.metrics import (
    RequestTrace,
    downsampled_series,
    draft_figures,
    goodput_figures,
    occupancy_figures,
    serving_figures,
)
from kvplan.sweeps.worker.protocol import Stage, TrialOrder, TrialResult
from kvplan.sweeps.worker.watch import TrialWatch
from kvplan_engine import Engine, EngineError
from kvplan_engine.device.allocation import is_context_lost

_COUNTS: Final = frozenset(
    {"completed", "failed", "total_input_tokens", "total_output_tokens", "max_concurrent_requests"}
)
"""What the group of throughputs counts, without any time."""
_NOT_SERVED = "it did not end"


def run_trial(host: EngineHost, order: TrialOrder, send: Send) -> TrialResult:
    """Run one trial. A failure that belongs to it becomes a status; any other is raised and ends the process."""
    stage: Stage = "loading" if host.engine is None else "setup"
    started = time.perf_counter()
    watch = TrialWatch(order, send, host)
    row: Row = {}
    try:
        engine = host.make_ready(order, send)
        row["setup_seconds"] = time.perf_counter() - started
        if stage == "loading":
            row["peak_loading_bytes"] = host.peak_loading_bytes
        stage = "serving"
        row |= memory_figures(engine)
        host.warm_up(engine, order, send)
        send(stage_message("serving", watch.memory_share()))
        result = _serve(engine, order, watch)
        return TrialResult(row | result.row, result.series, requests=result.requests)
    except (EngineError, MemoryError, RuntimeError, OSError) as error:
        failure = classify_failure(error, stage)
        if failure is None:
            raise
        is_spoiled = is_context_lost(error) or isinstance(error, MemoryError)
    # After the except clause, because the error's traceback keeps tensors alive.
    is_usable = host.recover(stage, on_gpu=watch.on_gpu) and not is_spoiled
    return TrialResult(row | failure, worker_usable=is_usable)


def _serve(engine: Engine, order: TrialOrder, watch: TrialWatch) -> TrialResult:
    requests = [timed_request(request, order, watch.host.adapters) for request in order.requests]
    before = engine.get_stats()
    ranks = () if engine.ranks is None else engine.ranks.pids
    meter = CpuMeter(lambda: cpu_seconds_of(ranks))
    watch.start(engine)
    hits_before = engine.prefix_cache.num_hit_tokens
    steps = StepCounter(engine) if order.is_counted else None
    generator = LoadGenerator(
        engine if steps is None else steps,
        requests,
        max_concurrency=order.max_concurrency,
        refused=(EngineError,),
        on_step=watch.see_step,
        count_cached_tokens=lambda: engine.prefix_cache.num_hit_tokens - hits_before,
        clock=time.perf_counter if steps is None else steps.read,
    )
    recording = generator.run()
    row: Row = {"layout_waste_pct": watch.layout_waste_pct()}
    if steps is not None:
        counted, series = _counted(recording, engine, before, order)
        return TrialResult(row | counted, series, requests=request_lines(recording.traces, order.trial_id, timed=False))
    row["other_cpu_pct"] = meter.other_cpu_pct()
    row |= serving_row(recording, engine, before, order.settings["max_model_len"])
    row |= goodput_figures(recording.traces, recording.duration_seconds, order.slo_seconds)
    row |= watch.peak_memory()
    series = downsampled_series(recording.samples, engine.memory.num_blocks)
    return TrialResult(row, series, requests=request_lines(recording.traces, order.trial_id))


def _counted(recording: Recording, engine: Engine, before: dict[str, Any], order: TrialOrder) -> tuple[Row, Series]:
    """What an engine that computes nothing says: everything but speeds. Means are over steps."""
    row = without_speeds(serving_row(recording, engine, before, order.settings["max_model_len"]))
    series = downsampled_series(recording.samples, engine.memory.num_blocks)
    return row, series | {"output_tokens_per_second": [], "step_seconds": []}


def serving_row(recording: Recording, engine: Engine, before: dict[str, Any], max_model_len: int) -> Row:
    """Status, throughput, latency and occupancy of a served workload. Counters count from ``before`` on."""
    memory, stats, after = engine.memory, engine.stats, engine.get_stats()
    row: Row = {}
    row |= serving_figures(recording.traces, recording.duration_seconds)
    row |= occupancy_figures(
        recording.samples,
        num_blocks=memory.num_blocks,
        block_size=memory.block_size,
        block_bytes=memory.block_bytes,
        max_model_len=max_model_len,
    )
    queries = after["prefix_cache_queries"] - before["prefix_cache_queries"]
    hits = after["prefix_cache_hits"] - before["prefix_cache_hits"]
    row["num_preemptions"] = after["num_preemptions"] - before["num_preemptions"]
    row["recomputed_tokens"] = after["recomputed_tokens"] - before["recomputed_tokens"]
    row["num_cached_tokens"] = hits
    row["prefix_hit_rate"] = hits / queries if queries else 0.0
    row["meas_max_concurrency"] = row.get("max_running")
    row |= draft_figures(before, after)
    row["status"] = "ok"
    if row["num_preemptions"]:
        row["status"] = "preempted"
    elif stats.num_blocked_admissions:
        row["status"] = "queued"
    return row


def num_threads(engine: Engine) -> int | None:
    """Threads of a step on a CPU."""
    is_on_cpu = engine.device.torch_device.type == "cpu" and not engine.config.is_counted
    return torch.get_num_threads() if is_on_cpu else None


def memory_figures(engine: Engine) -> Row:
    """What computes, and where the engine's memory went, as allocated."""
    memory = engine.memory
    return {
        "dtype": engine.model.dtype,
        "model_impl": None if engine.config.is_counted else engine.model.implementation,
        "kernels": engine.model.kernels_name,
        "num_threads": num_threads(engine),
        "kv_cache_dtype": engine.model.dtype
        if engine.config.kv_cache_dtype == "auto"
        else engine.config.kv_cache_dtype,
        "device_memory_bytes": memory.device_total_bytes,
        "budget_bytes": memory.budget_bytes,
        "weights_bytes": memory.weight_bytes,
        "adapter_bytes": engine.model.adapter_bytes,
        "activation_bytes": memory.activation_bytes,
        "activation_peak_bytes": None if engine.config.is_counted else memory.activation_peak_bytes,
        "overhead_bytes": memory.overhead_bytes,
        "graph_bytes": memory.graph_bytes,
        "kv_pool_bytes": memory.kv_pool_bytes,
        "block_bytes": memory.block_bytes,
        "num_blocks_total": memory.num_blocks,
        "kv_cache_tokens": engine.scheduler.pool.layout.pool_tokens(memory.num_blocks, engine.max_model_len),
    }


def request_lines(traces: Sequence[RequestTrace], trial_id: str, *, timed: bool = True) -> list[RequestLine]:
    """Return the requests in order of sending. timed: False where nothing was computed, so no time means anything."""
    start = min((trace.arrival_seconds for trace in traces), default=0.0)
    return [_line(number, trace, trial_id, start, timed) for number, trace in enumerate(traces)]


def _line(number: int, trace: RequestTrace, trial_id: str, start: float, timed: bool) -> RequestLine:
    is_served = trace.finished and bool(trace.token_times)
    has_times = timed and is_served
    due = trace.arrival_seconds if trace.due_seconds is None else trace.due_seconds
    return {
        "trial_id": trial_id,
        "id": number,
        "scheduled_s": round(due - start, 6) if timed else 0.0,
        "sent_s": round(trace.arrival_seconds - start, 6) if timed else 0.0,
        "ttft_s": rounded(trace.ttft_seconds) if has_times else None,
        "tpot_s": rounded(trace.tpot_seconds) if has_times else None,
        "itl_max_s": longest_gap(trace.token_times) if has_times else None,
        "e2el_s": rounded(trace.latency_seconds) if has_times else None,
        "end_s": rounded(trace.token_times[-1] - start) if has_times else None,
        "input_tokens": trace.num_prompt_tokens,
        "cached_tokens": trace.num_cached_tokens,
        "output_tokens": len(trace.token_times) if is_served else None,
        "error": None if is_served else trace.error or _NOT_SERVED,
    }


class StepCounter:
    """``engine`` with a clock beside it that says how many steps it has run."""

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine
        self._num_steps = 0

    def read(self) -> float:
        """Steps so far."""
        return float(self._num_steps)

    @property
    def stats(self) -> ServingStats:
        return self._engine.stats

    def add_request(
        self, request_id: str, prompt_token_ids: list[int], params: Any, *, lora_request: Any = None
    ) -> object:
        return self._engine.add_request(request_id, prompt_token_ids, params, lora_request=lora_request)

    def step(self) -> Sequence[StepOutput]:
        self._num_steps += 1
        return self._engine.step()

    def has_unfinished_requests(self) -> bool:
        return self._engine.has_unfinished_requests()


def without_speeds(row: Row) -> Row:
    """``row`` without throughputs and latencies: columns that are empty, not 0."""
    timed = {column.name for column in COLUMNS if column.group in ("throughput", "latency")} - _COUNTS
    return cast(Row, {name: value for name, value in row.items() if name not in timed})
