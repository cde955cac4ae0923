"""How the device's memory is divided, once the weights are loaded: workspace, graphs and KV pool.

Most sizes follow from the settings (see ``memory.breakdown``). The overhead of libraries and the memory of captured
graphs do not: they are measured with the largest step that the settings allow, and then the pool is carved again. What
other processes hold of a GPU is read anew for each pool.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter

from kvplan_engine.blocks.layout import KvLayout
from kvplan_engine.config import EngineConfig
from kvplan_engine.device.allocation import allocating
from kvplan_engine.device.device import Device, held_beside
from kvplan_engine.errors import ContextTooLong, EngineError
from kvplan_engine.execution.drafting import drafter_of, refuse_pair
from kvplan_engine.execution.loop.step_runner import StepRunner
from kvplan_engine.execution.model_runner import ModelRunner, workspace_buffers
from kvplan_engine.execution.profile_step import measure_profile_step
from kvplan_engine.memory.breakdown import MemoryBreakdown
from kvplan_engine.memory.plan import Reserve, kv_layout, plan_memory, resolve_max_model_len
from kvplan_engine.models.step_batch import GraphSize
from kvplan_engine.transformers_backend.model import RunnableModel


@dataclass(frozen=True, slots=True)
class Carving:
    """One division of the memory. runner: with its workspace, pool and graphs in place.

    layout: of the pool. max_model_len: as resolved for the model, in tokens. seconds_per_token: of a large prefill
    step, measured.
    """

    runner: StepRunner
    memory: MemoryBreakdown
    layout: KvLayout
    max_model_len: int
    seconds_per_token: float


@dataclass(frozen=True, slots=True)
class _Division:
    """A runner without a pool of its own settings yet, unless it was measured in one, and what was planned for it."""

    runner: ModelRunner
    memory: MemoryBreakdown
    layout: KvLayout
    max_model_len: int


@dataclass(frozen=True, slots=True)
class _Settled:
    """What was read for ``config``, by which its pool is carved, or why there will be none."""

    config: EngineConfig
    held_bytes: int
    refusal: EngineError | None = None


@dataclass(frozen=True, slots=True)
class _Measured:
    """What a step took that was the largest of some settings. largest_step: its tokens and sequences."""

    largest_step: tuple[int, int]
    overhead_bytes: int
    activation_peak_bytes: int
    seconds_per_token: float

    def covers(self, config: EngineConfig) -> bool:
        """Whether no step of ``config`` is larger."""
        return all(new <= own for new, own in zip(_largest_step(config), self.largest_step, strict=True))


class MemoryCarver:
    """Divides the memory that the weights of ``model`` leave, any number of times; measurements are kept."""

    def __init__(self, model: RunnableModel, device: Device) -> None:
        self._model = model
        self._device = device
        self._measured: list[_Measured] = []
        self._graph_bytes: dict[tuple[GraphSize, ...], int] = {}  # by the steps that are captured
        self._held_bytes = 0  # beside the weights, when the last pool was planned
        self._settled: _Settled | None = None
        self._planned = Reserve(0, 0, 0)

    def settle(self, config: EngineConfig) -> Reserve:
        """Measure what is not known of ``config``, and return what its pool is going to leave free.

        Nothing stays allocated. Where the settings are refused, it is what they are refused with.
        """
        self._settled = None
        self._held_bytes = self._read_held()
        self._planned = self._reserve(config, 0)
        before, refusal = self._measured.copy(), None
        try:
            self._divide(config).runner.drop_pool()
        except BaseException as error:
            self._measured = before
            if not isinstance(error, EngineError):
                raise
            refusal = error.with_traceback(None)  # which keeps tensors alive
        self._settled = _Settled(config, self._held_bytes, refusal)
        self._release_workspace()
        return self._planned

    def carve(self, config: EngineConfig) -> Carving:
        """Allocate for ``config``; OutOfDeviceMemory or ContextTooLong when that is not possible.

        What a step of refused settings took is forgotten, so that those before them fit as they did.
        """
        before, settled, self._settled = self._measured.copy(), self._settled, None
        if settled is not None and settled.config == config:
            if settled.refusal is not None:
                raise settled.refusal
            self._held_bytes = settled.held_bytes
        else:
            self._held_bytes = self._read_held()
        try:
            return self._carve(config)
        except BaseException:
            self._measured = before
            raise

    def _carve(self, config: EngineConfig) -> Carving:
        division = self._divide(config)
        runner, memory = division.runner, division.memory
        if runner.kv is None:
            runner.carve_pool(memory.num_blocks, config.kv_dtype(self._model.dtype))
        if runner.graph_sizes:
            runner.capture_graphs()
        measured = self._known(config)
        assert measured is not None
        memory = replace(memory, activation_peak_bytes=measured.activation_peak_bytes)
        return Carving(runner, memory, division.layout, division.max_model_len, measured.seconds_per_token)

    def _divide(self, config: EngineConfig) -> _Division:
        """Plan for ``config``, after what is not known was measured."""
        max_model_len = resolve_max_model_len(config, self._model.config)
        drafter = drafter_of(self._model, config)
        own = (self._model.config, self._model.dtype, max_model_len)
        layout = kv_layout(config, *own, None if drafter is None else drafter.config)
        if drafter is not None:
            refuse_pair(self._model, drafter, layout)
        self._refuse_before_allocating(config, layout, max_model_len)
        with allocating("kv_init"):
            runner = self._make_runner(config, layout, max_model_len)
        memory = self._plan(runner, config, layout, max_model_len)
        if self._must_measure(runner, config):
            trial = self._trial_of(memory, config, layout)
            runner.carve_pool(trial.num_blocks, config.kv_dtype(self._model.dtype))
            self._measure(runner, config, trial, layout, max_model_len)
            if trial is not memory or self._overhead_bytes(config) != memory.overhead_bytes:
                runner.drop_pool()
                self._device.release_unused()
                memory = self._plan(runner, config, layout, max_model_len)
        return _Division(runner, memory, layout, max_model_len)

    def _refuse_before_allocating(self, config: EngineConfig, layout: KvLayout, max_model_len: int) -> None:
        """OutOfDeviceMemory for a workspace that leaves no room for a pool: the system may have none for it either."""
        buffers = workspace_buffers(self._model, config, layout, max_model_len)
        with suppress(ContextTooLong):  # what largest context there is depends on all ranks
            self._plan_own(sum(buffer.num_bytes for buffer in buffers), 0, config, layout, max_model_len)

    def _make_runner(self, config: EngineConfig, layout: KvLayout, max_model_len: int) -> ModelRunner:
        return ModelRunner(self._model, config, self._device, layout, max_model_len)

    def _plan(self, runner: ModelRunner, config: EngineConfig, layout: KvLayout, max_model_len: int) -> MemoryBreakdown:
        graph_bytes = self._graph_bytes.get(runner.graph_sizes, 0)
        return self._plan_own(runner.workspace.num_bytes, graph_bytes, config, layout, max_model_len)

    def _plan_own(
        self, workspace_bytes: int, graph_bytes: int, config: EngineConfig, layout: KvLayout, max_model_len: int
    ) -> MemoryBreakdown:
        self._planned = reserve = self._reserve(config, graph_bytes)
        return plan_memory(
            config,
            layout,
            max_model_len,
            device_total_bytes=reserve.total_bytes,
            weight_bytes=self._model.weight_bytes,
            workspace_bytes=workspace_bytes,
            overhead_bytes=reserve.overhead_bytes,
            graph_bytes=reserve.graph_bytes,
        )

    def _reserve(self, config: EngineConfig, graph_bytes: int) -> Reserve:
        return Reserve(self._device.total_bytes, self._overhead_bytes(config), graph_bytes)

    # ---- what has to be measured

    def _read_held(self) -> int:
        """What is in use beside the weights now that the pool before is gone, and its workspace with it."""
        self._release_workspace()
        return held_beside(self._device, self._model.weight_bytes)

    def _release_workspace(self) -> None:
        """Give back that of a runner that is gone: to hold two of them, there may be no room."""
        self._model.release_workspace()
        if self._device.is_asynchronous:
            gc.collect()  # a runner's graphs, and frames of errors, keep tensors alive in cycles
        self._device.release_unused()

    def _known(self, config: EngineConfig) -> _Measured | None:
        """Return what was measured of the smallest step so far that is at least as large as any of ``config``."""
        return min(
            (each for each in self._measured if each.covers(config)), key=attrgetter("largest_step"), default=None
        )

    def _overhead_bytes(self, config: EngineConfig) -> int:
        """A GPU keeps what larger steps have loaded; a CPU's memory is given back after them.

        What other processes have come to hold of a GPU counts as well.
        """
        known = self._known(config)
        counted = self._measured if self._device.is_asynchronous else [] if known is None else [known]
        return max(self._device.overhead_bytes, self._held_bytes, *(each.overhead_bytes for each in counted))

    def _must_measure(self, runner: ModelRunner, config: EngineConfig) -> bool:
        """Whether steps may be larger than any measured so far, or graphs of these sizes have never been captured."""
        lacks_graphs = bool(runner.graph_sizes) and runner.graph_sizes not in self._graph_bytes
        return self._known(config) is None or lacks_graphs

    def _trial_of(self, memory: MemoryBreakdown, config: EngineConfig, layout: KvLayout) -> MemoryBreakdown:
        """``memory`` with the pool to measure in.

        On a GPU the pool is just large enough for the largest step, so that there is room for what the measurement
        shows even on a device that will be filled completely.
        """
        if not self._device.is_asynchronous:
            return memory
        num_tokens, num_seqs = _largest_step(config)
        num_seqs = min(num_seqs, num_tokens)
        bundles = num_tokens // memory.block_size + num_seqs + 1
        states = sum(group.width for group in layout.groups if group.is_state)
        num_blocks = min(memory.num_blocks, bundles * layout.token_blocks + num_seqs * states)
        return replace(memory, num_blocks=num_blocks, kv_pool_bytes=num_blocks * memory.block_bytes)

    def _measure(
        self, runner: ModelRunner, config: EngineConfig, memory: MemoryBreakdown, layout: KvLayout, max_model_len: int
    ) -> None:
        """Measure the overhead of the largest step and the memory of the graphs."""
        with allocating("runtime"):
            peak = measure_profile_step(runner, config, memory, layout, max_model_len)
        tensor_bytes = memory.weight_bytes + memory.activation_bytes + memory.kv_pool_bytes
        overhead_bytes = max(self._device.used_bytes() - tensor_bytes, peak.extra_bytes)
        self._measured.append(_Measured(_largest_step(config), overhead_bytes, peak.peak_bytes, peak.seconds_per_token))
        if runner.graph_sizes:
            self._graph_bytes[runner.graph_sizes] = runner.capture_graphs().num_bytes


def _largest_step(config: EngineConfig) -> tuple[int, int]:
    """Most tokens and most sequences of a step."""
    return config.max_num_batched_tokens, config.max_num_seqs
