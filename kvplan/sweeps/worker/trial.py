"""One trial inside the worker: engine made ready, workload served, row filled. Only the worker process imports this."""

from __future__ import annotations

import errno
import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import torch

import kvplan_engine
from kvplan.machine.cpu_meter import CpuMeter
from kvplan.runs.columns import Row
from kvplan.sweeps.worker.load_generator import LoadGenerator, Recording, TimedRequest
from kvplan.sweeps.worker.metrics import (
    StepSample,
    downsampled_series,
    goodput_figures,
    occupancy_figures,
    serving_figures,
)
from kvplan.sweeps.worker.protocol import Hello, Message, Stage, StageMessage, TrialOrder, TrialResult
from kvplan.workload.requests import RequestSpec, prompt_token_ids
from kvplan_engine import Engine, EngineConfig, EngineError, SamplingParams
from kvplan_engine.checkpoints.families import SUPPORTED_ARCHITECTURES
from kvplan_engine.device import process_memory
from kvplan_engine.device.allocation import is_context_lost
from kvplan_engine.errors import OutOfDeviceMemory
from kvplan_engine.kernels.cpu.library import cpu_kernels

Send = Callable[[Message], None]
_PROGRESS_SECONDS = 0.2
_WARMUP = RequestSpec(index=1 << 30, num_prompt_tokens=16, num_output_tokens=3)


def greeting() -> Hello:
    engine_version = getattr(kvplan_engine, "__version__", None) or _distribution_version("kvplan")
    return {
        "type": "hello",
        "pid": os.getpid(),
        "engine_version": str(engine_version),
        "torch_version": str(torch.__version__),
        "architectures": list(SUPPORTED_ARCHITECTURES),
    }


def _distribution_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


@dataclass(slots=True)
class EngineHost:
    """The engine of this process. The weights stay from trial to trial; only pool and workspace are made anew."""

    engine: Any = None
    is_limited: bool = False
    is_warm: bool = False
    resident_at_start: int = 0
    private_at_start: int = 0

    def make_ready(self, order: TrialOrder, send: Send) -> None:
        """Load on the first call, reconfigure afterwards. Raises what the engine raises."""
        settings = order.settings
        if self.engine is not None:
            send(_stage("setup"))
            changes = {name: settings[name] for name in settings if name not in ("dtype", "kv_cache_dtype")}
            self.engine.reconfigure(**changes)
            return
        send(_stage("loading"))
        self._limit_memory(order)
        self.engine = Engine(EngineConfig(**order.engine, **settings))

    def _limit_memory(self, order: TrialOrder) -> None:
        """On the CPU the device's total becomes a limit of the operating system, before any weight is there.

        The kernels are built before: a compiler is no part of the device, and a process inherits its parent's limit.
        """
        if order.engine["device"] != "cpu" or self.is_limited:
            return
        cpu_kernels()
        self.resident_at_start = process_memory.resident_memory_bytes()
        self.private_at_start = process_memory.private_memory_bytes()
        process_memory.limit_private_memory(order.engine["device_memory"])
        self.is_limited = True

    def recover(self, stage: Stage, *, on_gpu: bool) -> bool:
        """Make this process ready for the next trial after one that failed; False when only a new process will do.

        On a GPU the weights stay: the next trial carves a new pool, which drops everything of the failed one. On the
        CPU a failure while serving may have left threads without memory, so the process is replaced.
        """
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()
            return self.engine is None or bool(self.engine.device.is_usable())
        if stage != "serving":
            return True
        self.engine = None
        return False

    def warm_up(self, order: TrialOrder, send: Send) -> None:
        """One short request, not measured, on an engine that has just been loaded."""
        if not self.is_warm:
            send(_stage("warmup"))
            LoadGenerator(self.engine, [_timed_request(_WARMUP, order)], max_concurrency=1).run()
            self.is_warm = True


def _stage(stage: Stage, memory_share: float | None = None) -> StageMessage:
    return {"type": "stage", "stage": stage, "memory_share": memory_share}


def run_trial(host: EngineHost, order: TrialOrder, send: Send) -> TrialResult:
    """Run one trial. Failures that belong to it become a status; anything else is raised and ends the process."""
    stage: Stage = "loading" if host.engine is None else "setup"
    started = time.perf_counter()
    watch = _Watch(order, send, host)
    try:
        host.make_ready(order, send)
        watch.row["setup_seconds"] = time.perf_counter() - started
        stage = "serving"
        watch.row |= memory_figures(host.engine)
        host.warm_up(order, send)
        send(_stage("serving", watch.memory_share()))
        return _serve(host, order, watch)
    except (EngineError, MemoryError, RuntimeError, OSError) as error:
        failure = classify_failure(error, stage)
        if failure is None:
            raise
        is_spoiled = is_context_lost(error) or isinstance(error, MemoryError)
    # behind the except clause: the error's traceback held on to tensors
    is_usable = host.recover(stage, on_gpu=watch.on_gpu) and not is_spoiled
    return TrialResult(watch.row | failure, worker_usable=is_usable)


def _serve(host: EngineHost, order: TrialOrder, watch: _Watch) -> TrialResult:
    engine = host.engine
    requests = [_timed_request(request, order) for request in order.requests]
    before = engine.get_stats()
    meter = CpuMeter()
    watch.start(engine)
    hits_before = engine.prefix_cache.num_hit_tokens
    generator = LoadGenerator(
        engine,
        requests,
        max_concurrency=order.max_concurrency,
        refused=(EngineError,),
        on_step=watch.see_step,
        count_cached_tokens=lambda: engine.prefix_cache.num_hit_tokens - hits_before,
    )
    recording = generator.run()
    row = watch.row
    row["other_cpu_pct"] = meter.other_cpu_pct()
    row |= serving_row(recording, engine, before, order.settings["max_model_len"])
    row |= goodput_figures(recording.traces, recording.duration_seconds, order.slo_seconds)
    row |= watch.peak_memory()
    return TrialResult(row, downsampled_series(recording.samples, engine.memory.num_blocks))


def serving_row(recording: Recording, engine: Any, before: dict[str, Any], max_model_len: int) -> Row:
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
    row["status"] = "ok"
    if row["num_preemptions"]:
        row["status"] = "preempted"
    elif stats.num_blocked_admissions:
        row["status"] = "queued"
    return row


def memory_figures(engine: Engine) -> Row:
    """Where the engine's memory went, as it allocated it."""
    memory = engine.memory
    return {
        "dtype": engine.model.dtype,
        "kv_cache_dtype": engine.model.dtype
        if engine.config.kv_cache_dtype == "auto"
        else engine.config.kv_cache_dtype,
        "device_memory_bytes": memory.device_total_bytes,
        "budget_bytes": memory.budget_bytes,
        "weights_bytes": memory.weight_bytes,
        "activation_bytes": memory.activation_bytes,
        "activation_peak_bytes": memory.activation_peak_bytes,
        "overhead_bytes": memory.overhead_bytes,
        "graph_bytes": memory.graph_bytes,
        "kv_pool_bytes": memory.kv_pool_bytes,
        "block_bytes": memory.block_bytes,
        "num_blocks_total": memory.num_blocks,
    }


def classify_failure(error: Exception, stage: Stage) -> Row | None:
    """Status columns for a failure that belongs to the trial; None for one that nobody foresaw."""
    if is_context_lost(error):
        lines = str(error).strip().splitlines()
        return {"status": "crash", "error": f"The GPU takes no more work from this process: {lines[0]}"}
    if isinstance(error, EngineError):
        return {
            "status": error.status,
            "error": _sentence(error.message),
            "oom_phase": error.phase if isinstance(error, OutOfDeviceMemory) else None,
            "oom_requested_bytes": getattr(error, "requested_bytes", None),
            "oom_free_bytes": getattr(error, "free_bytes", None),
            "largest_max_model_len": getattr(error, "largest_tokens", None),
        }
    out_of_memory = isinstance(error, MemoryError) or "out of memory" in str(error).lower()
    out_of_memory |= "can't allocate memory" in str(error) or getattr(error, "errno", None) == errno.ENOMEM
    if not out_of_memory:
        return None
    phases = {"loading": "weights", "setup": "kv_init"}
    phase = phases.get(stage, "runtime")
    text = str(error).strip().splitlines()
    detail = text[0] if text else type(error).__name__
    return {"status": f"oom_{phase}", "oom_phase": phase, "error": f"Memory ran out: {detail}"}


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _timed_request(request: RequestSpec, order: TrialOrder) -> TimedRequest:
    tokens = prompt_token_ids(order.seed, request, order.vocab_size)
    num_output = request.num_output_tokens
    if request is _WARMUP:
        longest = order.settings["max_model_len"]
        tokens = tokens[: max(1, longest - num_output)]
        num_output = min(num_output, longest - len(tokens))
    params = SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True)
    return TimedRequest(f"request-{request.index}", request.arrival_seconds, tokens, params, num_output)


@dataclass(slots=True)
class _Watch:
    """Looks on while a trial is served: progress messages five times a second, and the highest memory reading."""

    order: TrialOrder
    send: Send
    host: EngineHost
    row: Row = field(default_factory=lambda: Row())
    _num_blocks: int = 1
    _num_tokens: int = 0
    _tokens_at_report: int = 0
    _last_report: float = 0.0
    _peak_resident: int = 0
    _peak_private: int = 0

    def start(self, engine: Any) -> None:
        self._num_blocks = engine.memory.num_blocks
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        self._read_memory()

    def see_step(self, sample: StepSample) -> None:
        self._num_tokens += sample.num_new_tokens
        elapsed = sample.seconds - self._last_report
        if elapsed < _PROGRESS_SECONDS:
            return
        total = sum(request.num_output_tokens for request in self.order.requests)
        self.send(
            {
                "type": "progress",
                "output_tokens_per_second": (self._num_tokens - self._tokens_at_report) / elapsed,
                "kv_usage": sample.num_used_blocks / self._num_blocks,
                "num_running": sample.num_running,
                "num_waiting": sample.num_waiting,
                "share": self._num_tokens / total,
                "memory_share": self.memory_share(),
            }
        )
        self._last_report, self._tokens_at_report = sample.seconds, self._num_tokens

    def peak_memory(self) -> Row:
        """The most memory seen: what the allocator counted on a GPU, what the process mapped on the CPU."""
        if self.on_gpu:
            allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            return {"peak_allocated_bytes": allocated, "peak_reserved_bytes": reserved}
        self._read_memory()
        return {
            "peak_allocated_bytes": self._peak_resident - self.host.resident_at_start,
            "peak_reserved_bytes": self._peak_private - self.host.private_at_start,
        }

    def memory_share(self) -> float | None:
        """How much of the device's memory the process holds now; only the CPU device ends a process that wants more."""
        if self.on_gpu:
            return None
        self._read_memory()
        held = process_memory.private_memory_bytes() - self.host.private_at_start
        return float(held / self.order.engine["device_memory"])

    @property
    def on_gpu(self) -> bool:
        return bool(self.order.engine["device"] == "cuda")

    def _read_memory(self) -> None:
        if not self.on_gpu:
            self._peak_resident = max(self._peak_resident, process_memory.resident_memory_bytes())
            self._peak_private = max(self._peak_private, process_memory.private_memory_bytes())
