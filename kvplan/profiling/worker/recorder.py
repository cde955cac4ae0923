"""Notes every step of an engine: what it computes, where its time goes, and who holds the blocks afterwards."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from kvplan.profiling.steps import PHASES, StepColumns
from kvplan.sweeps.worker.metrics import StepSample
from kvplan_engine import Engine
from kvplan_engine.execution.loop.step_runner import Phase
from kvplan_engine.requests.step_plan import StepPlan

_MEMORY_READING_SECONDS: Final = 0.02


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
