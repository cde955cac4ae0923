"""The engine of a worker process: loaded for the first trial, reconfigured for each of the next ones."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

import torch

import kvplan_engine
from kvplan.sweeps.worker.load_generator import LoadGenerator, TimedRequest
from kvplan.sweeps.worker.protocol import (
    RESERVE,
    WITHOUT_KERNELS,
    Hello,
    Message,
    ReserveMessage,
    Stage,
    StageMessage,
    TrialOrder,
)
from kvplan.workload.requests import RequestSpec, adapter_of, prompt_token_ids
from kvplan_engine import Engine, EngineConfig, LoRARequest, SamplingParams
from kvplan_engine.checkpoints.families import KNOWN_ARCHITECTURES, SUPPORTED_ARCHITECTURES
from kvplan_engine.config import knobs
from kvplan_engine.device import process_memory
from kvplan_engine.kernels.cpu.library import kernel_state
from kvplan_engine.memory.plan import Reserve
from kvplan_engine.models.device_kernels import REFERENCE
from kvplan_engine.transformers_backend.ways import chosen_implementation

Send = Callable[[Message], None]
_WARMUP = RequestSpec(index=1 << 30, num_prompt_tokens=16, num_output_tokens=3)


def greeting() -> Hello:
    """What this process runs and what its engine supports."""
    engine_version = getattr(kvplan_engine, "__version__", None) or _distribution_version("kvplan")
    return {
        "type": "hello",
        "pid": os.getpid(),
        "engine_version": str(engine_version),
        "torch_version": str(torch.__version__),
        "architectures": list(SUPPORTED_ARCHITECTURES),
        "known_architectures": list(KNOWN_ARCHITECTURES),
    }


def _distribution_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


def stage_message(stage: Stage, memory_share: float | None = None) -> StageMessage:
    return {"type": "stage", "stage": stage, "memory_share": memory_share}


@dataclass(slots=True)
class EngineHost:
    """The engine of this process. The weights stay from trial to trial; only pool and workspace are made anew.

    loaded_for: what cannot be changed of it. adapters: of random weights, as many as the engine has slots for.
    peak_loading_bytes: physical memory while it was loaded; None on a GPU.
    """

    engine: Engine | None = None
    loaded_for: dict[str, Any] = field(default_factory=dict)
    peak_loading_bytes: int | None = None
    adapters: list[LoRARequest] = field(default_factory=list)
    is_limited: bool = False
    is_warm: bool = False
    resident_at_start: int = 0
    private_at_start: int = 0

    def make_ready(self, order: TrialOrder, send: Send) -> Engine:
        """The engine, loaded for the first order and reconfigured for the next ones. Raises what the engine raises.

        Orders for other weights need a process of their own, but where memory is only counted.
        """
        engine, has_its_pool = self._loaded(order, send)
        changes = _changes(order)
        if _is_on_gpu(order):
            send(_reserve_message(engine.settle(**changes)))
        if not has_its_pool:
            engine.reconfigure(**changes)
        if not self.adapters:
            self.adapters = [engine.add_dummy_adapter(f"adapter-{n}", n) for n in range(order.num_adapters)]
        engine.touch_blocks(_blocks_to_write(engine, order))
        return engine

    def settle(self, order: TrialOrder, send: Send) -> ReserveMessage:
        """Load the engine of an order for a GPU, and say what it would keep free. Raises what the engine raises."""
        engine, _ = self._loaded(order, send)
        return _reserve_message(engine.settle(**_changes(order)))

    def _loaded(self, order: TrialOrder, send: Send) -> tuple[Engine, bool]:
        """The engine with the order's weights, and whether it has a pool for the order: not if it was there before.

        On a GPU it has none in any case: what it will keep free is said first.
        """
        settings, changes = order.settings, _changes(order)
        loaded_for = order.engine | {name: settings[name] for name in settings if name not in changes}
        if self.engine is not None and loaded_for == self.loaded_for:
            send(stage_message("setup"))
            return self.engine, False
        is_on_cpu = order.engine["device"] == "cpu" and not order.is_counted
        if is_on_cpu:  # before memory is limited: the compiler is not part of the device, and would inherit the limit
            send(stage_message("compiling"))
            _tell(cpu_kernels_notice(), send)
        send(stage_message("loading"))
        self._limit_memory(order)
        with process_memory.PeakMemory() as peak:
            self.engine = Engine(EngineConfig(**order.engine, **settings), with_pool=not _is_on_gpu(order))
        if is_on_cpu:
            _tell(unused_kernels_notice(self.engine.model.kernels_name, self.engine.model.dtype), send)
        self.peak_loading_bytes = peak.bytes_above_start if is_on_cpu else None
        self.loaded_for, self.adapters = loaded_for, []
        return self.engine, not _is_on_gpu(order)

    def _limit_memory(self, order: TrialOrder) -> None:
        """On the CPU the device's total becomes a limit of the operating system, before any weights are loaded."""
        if order.engine["device"] != "cpu" or order.is_counted or self.is_limited:
            return
        config = EngineConfig(**order.engine, **order.settings)
        chosen_implementation(config, order.engine["model"])  # imports what it needs
        self.resident_at_start = process_memory.resident_memory_bytes()
        self.private_at_start = process_memory.private_memory_bytes()
        process_memory.limit_private_memory(order.engine["device_memory"])
        self.is_limited = True

    def recover(self, stage: Stage, *, on_gpu: bool) -> bool:
        """Make this process ready for the next trial after one that failed; False if only a new process will do.

        On a GPU the weights stay: the next trial carves a new pool, which drops everything of the failed one. On the
        CPU a failure while serving may have left threads without memory, so the process is replaced.
        """
        gc.collect()
        ranks = None if self.engine is None else self.engine.ranks
        if ranks is not None and ranks.has_ended:
            return False
        if on_gpu:
            torch.cuda.empty_cache()
            return self.engine is None or bool(self.engine.device.is_usable())
        if stage != "serving":
            return True
        self.engine = None
        return False

    def warm_up(self, engine: Engine, order: TrialOrder, send: Send) -> None:
        """One short request, not measured, on an engine that has just been loaded."""
        if not self.is_warm:
            send(stage_message("warmup"))
            LoadGenerator(engine, [timed_request(_WARMUP, order, self.adapters)], max_concurrency=1).run()
            self.is_warm = True


def _is_on_gpu(order: TrialOrder) -> bool:
    return order.engine["device"] == "cuda" and not order.is_counted


def _changes(order: TrialOrder) -> dict[str, Any]:
    """The settings that an engine with these weights can take."""
    return {name: value for name, value in order.settings.items() if knobs()[name].reconfigurable}


def _reserve_message(reserve: Reserve) -> ReserveMessage:
    return {"type": RESERVE, "reserve": asdict(reserve)}


def _tell(notice: str | None, send: Send) -> None:
    if notice is not None:
        send({"type": "notice", "text": notice})


def _blocks_to_write(engine: Engine, order: TrialOrder) -> int:
    """How many blocks the requests write to: each its own where prefixes are kept, else those that run at once."""
    layout = engine.scheduler.pool.layout
    lengths = sorted(each.num_prompt_tokens + each.num_output_tokens for each in order.requests)
    if not engine.config.caches_prefixes:
        lengths = lengths[-order.settings["max_num_seqs"] :]
    return sum(layout.blocks_for(length) for length in lengths)


def timed_request(request: RequestSpec, order: TrialOrder, adapters: Sequence[LoRARequest]) -> TimedRequest:
    """``request`` as the engine takes it. adapters: the requests use them in turn."""
    tokens = prompt_token_ids(order.seed, request, order.vocab_size)
    num_output = request.num_output_tokens
    if request is _WARMUP:
        longest = order.settings["max_model_len"]
        tokens = tokens[: max(1, longest - num_output)]
        num_output = min(num_output, longest - len(tokens))
    params = SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True)
    number = adapter_of(request.index, len(adapters))
    adapter = None if number is None else adapters[number]
    return TimedRequest(f"request-{request.index}", request.arrival_seconds, tokens, params, num_output, adapter)


def cpu_kernels_notice() -> str | None:
    """Builds the CPU's kernels, if they are not there, and says what is not as usual about them; None for nothing."""
    state = kernel_state()
    if state.absence is not None:
        hint = f". hint: {state.absence.hint}" if state.absence.hint else ""
        return f"warning: no CPU kernels, because {state.absence.message}. {WITHOUT_KERNELS}{hint}"
    return None if state.notice is None else f"note: {state.notice}"


def unused_kernels_notice(kernels_name: str | None, dtype: str) -> str | None:
    """What to say where the CPU's kernels are there, and do not compute in the model's ``dtype``."""
    if kernels_name != REFERENCE or kernel_state().absence is not None:
        return None
    return f"warning: the CPU kernels do not compute in {dtype}. {WITHOUT_KERNELS}. hint: --dtype float32 or bfloat16"
