"""Looks on while a trial is served: progress messages five times per second, and the highest memory reading."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

import torch

from kvplan.runs.columns import Row
from kvplan.sweeps.worker.engine_host import EngineHost, Send
from kvplan.sweeps.worker.metrics import StepSample
from kvplan.sweeps.worker.protocol import TrialOrder
from kvplan_engine import Engine
from kvplan_engine.device import process_memory

_PROGRESS_SECONDS: Final = 0.2
_STEPS_PER_LAYOUT_READING: Final = 8


@dataclass(slots=True)
class TrialWatch:
    """One trial. ``send``: where progress messages go; ``host``: the process's memory before it had an engine."""

    order: TrialOrder
    send: Send
    host: EngineHost
    _engine: Engine | None = None
    _num_blocks: int = 1
    _num_steps: int = 0
    _layout_waste: list[float] = field(default_factory=list)
    _num_tokens: int = 0
    _tokens_at_report: int = 0
    _last_report: float = field(default_factory=time.perf_counter)
    _peak_resident: int = 0
    _peak_private: int = 0

    def start(self, engine: Engine) -> None:
        self._engine, self._num_blocks = engine, engine.memory.num_blocks
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        self._read_memory()

    def see_step(self, sample: StepSample) -> None:
        self._num_tokens += sample.num_new_tokens
        self._num_steps += 1
        if self._num_steps % _STEPS_PER_LAYOUT_READING == 0:
            waste = None if self._engine is None else self._engine.layout_waste_pct()
            if waste is not None:
                self._layout_waste.append(waste)
        now = time.perf_counter()
        elapsed = now - self._last_report
        if elapsed < _PROGRESS_SECONDS:
            return
        rate = (self._num_tokens - self._tokens_at_report) / elapsed
        total = sum(request.num_output_tokens for request in self.order.requests)
        self.send(
            {
                "type": "progress",
                "output_tokens_per_second": None if self.order.is_counted else rate,
                "kv_usage": sample.num_used_blocks / self._num_blocks,
                "num_running": sample.num_running,
                "num_waiting": sample.num_waiting,
                "share": self._num_tokens / total,
                "memory_share": self.memory_share(),
            }
        )
        self._last_report, self._tokens_at_report = now, self._num_tokens

    def layout_waste_pct(self) -> float | None:
        """Mean of the readings; None for a trial without any."""
        return fmean(self._layout_waste) if self._layout_waste else None

    def peak_memory(self) -> Row:
        """The most memory seen: what the allocator counted on a GPU, what the process mapped on the CPU.

        Nothing of an engine that only counts: what this process holds is none of the device's.
        """
        if self.order.is_counted:
            return {}
        if self.on_gpu:
            allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            return {"peak_allocated_bytes": allocated, "peak_reserved_bytes": reserved}
        self._read_memory()
        return {
            "peak_allocated_bytes": self._peak_resident - self.host.resident_at_start,
            "peak_reserved_bytes": self._peak_private - self.host.private_at_start,
        }

    def memory_share(self) -> float | None:
        """Share of the device's memory that the process holds now; None on a GPU, which never ends a process for it."""
        if self.on_gpu or self.order.is_counted:
            return None
        self._read_memory()
        held = process_memory.private_memory_bytes() - self.host.private_at_start
        return float(held / self.order.engine["device_memory"])

    @property
    def on_gpu(self) -> bool:
        return bool(self.order.engine["device"] == "cuda") and not self.order.is_counted

    def _read_memory(self) -> None:
        if not self.on_gpu:
            self._peak_resident = max(self._peak_resident, process_memory.resident_memory_bytes())
            self._peak_private = max(self._peak_private, process_memory.private_memory_bytes())
