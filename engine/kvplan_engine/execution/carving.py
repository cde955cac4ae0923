"""How the device's memory is divided, once the weights are loaded: workspace, graphs and KV pool.

Most sizes follow from the settings (see ``memory.breakdown``). The overhead of libraries and the memory of captured
graphs do not: they are measured with the largest step that the settings allow, and then the pool is carved again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan_engine.blocks.layout import KvLayout
from kvplan_engine.config import EngineConfig
from kvplan_engine.device.allocation import allocating
from kvplan_engine.device.device import Device
from kvplan_engine.execution.loop.step_runner import StepRunner
from kvplan_engine.execution.model_runner import ModelRunner
from kvplan_engine.execution.profile_step import measure_profile_step
from kvplan_engine.memory.breakdown import MemoryBreakdown
from kvplan_engine.memory.plan import kv_layout, plan_memory, resolve_max_model_len
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


class MemoryCarver:
    """Divides the memory that the weights of ``model`` leave, any number of times; measurements are kept."""

    def __init__(self, model: RunnableModel, device: Device) -> None:
        self._model = model
        self._device = device
        self._overhead_bytes = device.overhead_bytes
        self._profiled_step: tuple[int, int] = (0, 0)  # the largest step measured: tokens, sequences
        self._graph_bytes: dict[tuple[GraphSize, ...], int] = {}  # by the steps that are captured
        self._activation_peak_bytes = 0
        self._seconds_per_token = 0.0

    def carve(self, config: EngineConfig) -> Carving:
        """Allocate for ``config``; OutOfDeviceMemory or ContextTooLong when that is not possible."""
        max_model_len = resolve_max_model_len(config, self._model.config)
        layout = kv_layout(config, self._model.config, self._model.dtype, max_model_len)
        runner = self._make_runner(config, layout, max_model_len)
        kv_dtype = config.kv_dtype(self._model.dtype)
        memory = self._plan(runner, config, layout, max_model_len)
        if self._must_measure(runner, config):
            trial = self._trial_of(memory, config, layout)
            runner.carve_pool(trial.num_blocks, kv_dtype)
            self._measure(runner, config, trial, layout, max_model_len)
            if trial is not memory or self._overhead_bytes != memory.overhead_bytes:
                runner.drop_pool()
                self._device.release_unused()
                memory = self._plan(runner, config, layout, max_model_len)
        if runner.kv is None:
            runner.carve_pool(memory.num_blocks, kv_dtype)
        if runner.graph_sizes:
            runner.capture_graphs()
        memory = replace(memory, activation_peak_bytes=self._activation_peak_bytes)
        return Carving(runner, memory, layout, max_model_len, self._seconds_per_token)

    def _make_runner(self, config: EngineConfig, layout: KvLayout, max_model_len: int) -> ModelRunner:
        return ModelRunner(self._model, config, self._device, layout, max_model_len)

    def _plan(self, runner: ModelRunner, config: EngineConfig, layout: KvLayout, max_model_len: int) -> MemoryBreakdown:
        return plan_memory(
            config,
            layout,
            max_model_len,
            device_total_bytes=self._device.total_bytes,
            weight_bytes=self._model.weight_bytes,
            workspace_bytes=runner.workspace.num_bytes,
            overhead_bytes=self._overhead_bytes,
            graph_bytes=self._graph_bytes.get(runner.graph_sizes, 0),
        )

    # ---- what has to be measured

    def _must_measure(self, runner: ModelRunner, config: EngineConfig) -> bool:
        """Whether steps may be larger than any measured so far, or graphs of these sizes have never been captured."""
        is_larger = any(new > old for new, old in zip(_largest_step(config), self._profiled_step, strict=True))
        return is_larger or (bool(runner.graph_sizes) and runner.graph_sizes not in self._graph_bytes)

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
        self._activation_peak_bytes = peak.peak_bytes
        self._seconds_per_token = peak.seconds_per_token
        tensor_bytes = memory.weight_bytes + memory.activation_bytes + memory.kv_pool_bytes
        overhead_bytes = max(self._device.used_bytes() - tensor_bytes, peak.extra_bytes)
        self._overhead_bytes = max(self._overhead_bytes, overhead_bytes)
        self._profiled_step = _largest_step(config)
        if runner.graph_sizes:
            self._graph_bytes[runner.graph_sizes] = runner.capture_graphs().num_bytes


def _largest_step(config: EngineConfig) -> tuple[int, int]:
    """Most tokens and most sequences of a step."""
    return config.max_num_batched_tokens, config.max_num_seqs
