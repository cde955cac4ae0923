"""What is expected of a trial before it starts: memory from the config alone, time from a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvplan.catalog.devices.device_support import compute_capability
from kvplan.catalog.devices.gpus import GpuCount, GpuProfile, find_gpu
from kvplan.catalog.devices.measured_profile import MeasuredProfile, Origin
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import UsageError
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.kv_groups import KvGroup
from kvplan.estimate.kvplan.memory import EnginePrediction, predict
from kvplan.estimate.kvplan.settings import EngineDevice, engine_dtype
from kvplan.estimate.speed.simulation.batching import simulate_requests
from kvplan.estimate.speed.simulation.figures import SimulatedFigures, simulated_figures
from kvplan.estimate.speed.simulation.interface import UNIFORM, BatchLimits, Simulation, StepClock
from kvplan.estimate.speed.steps.step_time import Speed, StepTimes, step_shape
from kvplan.estimate.vllm.memo import Memo
from kvplan.machine.device import Device, Reserve
from kvplan.machine.host import has_bfloat16_units
from kvplan.runs.columns import Row
from kvplan.runs.statuses import ContextLimit
from kvplan.runs.trials import TrialSettings
from kvplan.sweeps.forecast.deployed import DeployedPool, predict_deployed
from kvplan.sweeps.forecast.pool import EngineModel, PoolPrediction
from kvplan.sweeps.forecast.step_cost import CountedStep, guess_speed
from kvplan.workload.requests import ClippedRequests, RequestSpec, adapter_of, clip_requests

_PADDING = 0.1
"""An engine may pad weights, or keep some in float32, by as much of them."""


@dataclass(frozen=True, slots=True)
class TrialPrediction:
    """The planner's view of one trial. ``seconds`` is the measured part alone, without loading or carving.

    weight_bytes: with the slots of adapters, which take adapter_bytes.

    requests: those that the trial will serve, clipped to its max_model_len. figures: throughput and latency, None for a
    trial that will not be served, and where no speed is predicted: nothing is computed, weights in few bits, adapters,
    speculation.
    time_scale: what times were multiplied by after the trials so far. largest_context: of a sequence that is accepted;
    context_limited_by: what allows no more. deployed: of GPUs that are only counted, None elsewhere.
    """

    requests: ClippedRequests
    status: str
    dtype: str
    weight_bytes: int
    adapter_bytes: int
    block_bytes: int
    num_blocks: int
    kv_cache_tokens: int
    largest_context: int
    context_limited_by: ContextLimit
    max_concurrency: int
    figures: SimulatedFigures | None
    seconds: float
    origin: Origin | None
    time_scale: float
    deployed: DeployedPool | None = None

    @property
    def output_throughput(self) -> float | None:
        return None if self.figures is None else self.figures.output_throughput

    @property
    def is_measured(self) -> bool:
        """Whether the trial is expected to serve its workload."""
        return self.status in ("ok", "queued", "preempted")


@dataclass(frozen=True, slots=True)
class SettledReserve:
    """What the engine keeps free, as it said for ``settings``."""

    settings: TrialSettings
    reserve: Reserve

    def graph_bytes(self, settings: TrialSettings) -> int | None:
        """Return the bytes of steps that are captured for these settings; None where those are others."""
        return self.reserve.graph_bytes if _steps(settings) == _steps(self.settings) else None


def _steps(settings: TrialSettings) -> tuple[object, ...]:
    """Equal for settings whose steps have the same sizes, of the same weights."""
    return settings.load_key, settings.max_num_seqs, settings.max_num_batched_tokens, settings.enforce_eager


@dataclass(frozen=True, slots=True)
class Predictor:
    """Predicts trials of one model on one device with one workload.

    time_scale: measured over predicted seconds of the trials so far, 1 before the first. calibration: what this device
    achieved in an earlier sweep, None for estimates. is_counted: nothing will be computed, so speeds are not predicted.
    is_dense: weights that are published in few bits are dummies in the dtype that is computed in, where no format is
    asked for. engine: what serves the trials, None for kvplan's own. lowered: settings that its running server can
    lower. finds_more: the prefix cache will find what a file says that prompts share. That is not simulated, and speeds
    are not predicted then. deployed_on: the GPUs that are counted as a deployment divides them, None where none are
    named. reserve: what the engine said that it keeps free of a GPU, None before it has said anything.
    """

    spec: ModelSpec
    device: Device
    requests: tuple[RequestSpec, ...]
    max_concurrency: int | None = None
    time_scale: float = 1.0
    calibration: MeasuredProfile | None = None
    is_counted: bool = False
    is_dense: bool = False
    engine: EngineModel | None = None
    lowered: frozenset[str] = frozenset()
    finds_more: bool = False
    deployed_on: GpuCount | None = None
    reserve: SettledReserve | None = None
    _memo: Memo = field(default_factory=dict, repr=False, compare=False)

    def with_reserve(self, settings: TrialSettings, reserve: Reserve) -> Predictor:
        """One that knows what the engine keeps free for ``settings``."""
        return replace(self, reserve=SettledReserve(settings, reserve))

    def with_time_scale(self, time_scale: float) -> Predictor:
        return replace(self, time_scale=time_scale)

    def memory(self, settings: TrialSettings) -> PoolPrediction:
        """The engine's memory at these settings, from config and settings alone."""
        return self.own_memory(settings) if self.engine is None else self.engine.memory(settings)

    def own_memory(self, settings: TrialSettings) -> EnginePrediction:
        """Return the memory of kvplan's own engine."""
        if (deployed := self.deployed(settings)) is not None:
            return deployed.engine
        is_dense = self.is_dense and settings.quantization == "auto"
        asked = replace(settings, quantization="none") if is_dense else settings
        return predict(self.spec, asked, self._engine_device(settings))

    def deployed(self, settings: TrialSettings) -> DeployedPool | None:
        """The pool of the GPUs that are only counted; None where none are named."""
        if self.deployed_on is None:
            return None
        return predict_deployed(self.spec, self.deployed_on, settings, self._engine_device(settings), self._memo)

    def trial(self, settings: TrialSettings) -> TrialPrediction:
        memory = self.memory(settings)
        clipped = clip_requests(self.requests, settings.max_model_len)
        status, concurrency, figures, seconds = str(memory.outcome), 0, None, 0.0
        has_speeds = self._has_speeds(memory) and not (self.finds_more and settings.enable_prefix_caching is not False)
        has_speeds = has_speeds and not settings.num_speculative_tokens  # nobody knows which drafts will be accepted
        if memory.outcome == "ok":
            simulated = forecast_trial(
                clipped.requests,
                settings,
                num_blocks=self._usable_blocks(settings, memory),
                groups=memory.layout.groups,
                cost=self._clock(settings, memory),
                max_concurrency=self.max_concurrency,
            )
            status, concurrency = simulated.status, simulated.max_running
            seconds = simulated.seconds
            figures = simulated_figures(simulated) if has_speeds else None
        return TrialPrediction(
            requests=clipped,
            status=status,
            dtype=self.dtype(settings),
            weight_bytes=memory.weight_bytes,
            adapter_bytes=memory.adapter_bytes if isinstance(memory, EnginePrediction) else 0,
            block_bytes=memory.block_bytes,
            num_blocks=memory.num_blocks,
            kv_cache_tokens=memory.kv_cache_tokens,
            largest_context=memory.largest_context,
            context_limited_by="model" if memory.largest_context == self.spec.max_position_embeddings else "pool",
            max_concurrency=concurrency,
            figures=figures,
            seconds=seconds,
            origin=self._origin(settings, memory) if has_speeds else None,
            time_scale=self.time_scale,
            deployed=self.deployed(settings),
        )

    def _has_speeds(self, memory: PoolPrediction) -> bool:
        """Whether speeds are predicted: of weights that all have the dtype that is computed in, and no adapters."""
        if self.is_counted or not isinstance(memory, EnginePrediction):
            return not self.is_counted
        return memory.weight_bytes == self.spec.num_parameters * element_bytes(memory.settings.serving.dtype)

    def _clock(self, settings: TrialSettings, memory: PoolPrediction) -> StepClock:
        return CountedStep() if self.is_counted else self.step_times(settings, memory)

    def _origin(self, settings: TrialSettings, memory: PoolPrediction) -> Origin | None:
        """Return the source of the speeds; None of a guess: of a CPU, or of a GPU that the catalog does not know,
        nothing is known before a calibration or a trial of this sweep."""
        if self.calibration is None and self.time_scale == 1.0 and _known_gpu(self.device) is None:
            return None
        if self.calibration is None or (self.engine is not None and not self._is_plain(settings, memory)):
            return "roofline"
        return self.calibration.origin_for(self.spec.id, self.dtype(settings))

    def _is_plain(self, settings: TrialSettings, memory: PoolPrediction) -> bool:
        """Whether another engine's steps are those of ``step_times``: one rank, and weights in its dtype."""
        plain_bytes = self.spec.num_parameters * element_bytes(self.dtype(settings))
        num_ranks = settings.tensor_parallel_size * settings.pipeline_parallel_size
        return num_ranks == 1 and abs(memory.weight_bytes / plain_bytes - 1) < _PADDING

    def _usable_blocks(self, settings: TrialSettings, memory: PoolPrediction) -> int:
        return memory.num_blocks if self.engine is None else self.engine.memory(settings).usable_blocks

    def step_times(self, settings: TrialSettings, memory: PoolPrediction) -> StepTimes:
        """The time of a step: the device's speed, calibrated or estimated, on this model."""
        dtype = self.dtype(settings)
        shape = step_shape(
            self.spec,
            element_bytes=element_bytes(dtype),
            kv_bytes_per_token=memory.layout.bytes_per_token,
        )
        if self.calibration is None:
            speed = guess_speed(self.device.kind, _known_gpu(self.device), dtype)
        else:
            speed = Speed.from_json(self.calibration.coefficients)
        return StepTimes(shape, speed, self.time_scale)

    def largest_step_seconds(self, settings: TrialSettings) -> float:
        """The step that the engine profiles when it starts: as many tokens as fit one step."""
        if self.is_counted:
            return 0.0
        times = self.step_times(settings, self.memory(settings))
        tokens, rows = settings.max_num_batched_tokens, min(settings.max_num_seqs, settings.max_num_batched_tokens)
        return times.seconds(tokens, rows, rows, tokens, tokens * min(settings.max_model_len, tokens) / 2)

    def dtype(self, settings: TrialSettings) -> str:
        """Return the dtype of weights and activations."""
        if self.engine is not None:
            return self.engine.memory(settings).dtype
        if (deployed := self.deployed(settings)) is not None:
            return deployed.dtype
        return engine_dtype(self.spec, settings.dtype, self._engine_device(settings))

    def _engine_device(self, settings: TrialSettings) -> EngineDevice:
        gpu, overhead_bytes, graph_bytes = _known_gpu(self.device), self.device.overhead_bytes, None
        memory_bytes = self.device.memory_bytes
        if self.reserve is not None:
            memory_bytes = self.reserve.reserve.total_bytes
            overhead_bytes = self.reserve.reserve.overhead_bytes
            graph_bytes = self.reserve.graph_bytes(settings)
        return EngineDevice(
            memory_bytes=memory_bytes,
            kind="cuda" if self.device.kind == "cuda" else "cpu",
            has_bfloat16_units=self.is_counted or has_bfloat16_units(),
            is_counted=self.is_counted,
            compute_capability=self.device.compute_capability or (None if gpu is None else compute_capability(gpu)),
            overhead_bytes=None if self.is_counted else overhead_bytes,
            graph_bytes=graph_bytes,
        )


def _known_gpu(device: Device) -> GpuProfile | None:
    """The catalog's profile of the sweep's GPU; None for a CPU or an unknown GPU."""
    if device.kind != "cuda":
        return None
    try:
        return find_gpu(device.name)
    except UsageError:
        return None


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def predicted_columns(prediction: TrialPrediction) -> Row:
    """The prediction's part of a row: no speeds without a source."""
    figures = prediction.figures if prediction.origin else None
    return {
        "dtype": prediction.dtype,
        "weights_bytes_predicted": prediction.weight_bytes,
        "adapter_bytes_predicted": prediction.adapter_bytes,
        "block_bytes_predicted": prediction.block_bytes,
        "num_blocks_predicted": prediction.num_blocks,
        "kv_cache_tokens_predicted": prediction.kv_cache_tokens,
        "kv_cache_tokens_vllm": None if prediction.deployed is None else prediction.deployed.vllm.kv_cache_tokens,
        "predicted_status": prediction.status,
        "pred_max_concurrency": prediction.max_concurrency,
        "pred_output_throughput": figures.output_throughput if figures else None,
        "pred_median_ttft_ms": _milliseconds(figures.median_ttft_seconds) if figures else None,
        "pred_median_tpot_ms": _milliseconds(figures.median_tpot_seconds) if figures else None,
        "pred_median_itl_ms": _milliseconds(figures.median_itl_seconds) if figures else None,
        "prediction_origin": prediction.origin,
        "learned_time_factor": round(prediction.time_scale, 4),
        "predicted_seconds": round(prediction.seconds, 3),
    }


def forecast_trial(
    requests: Sequence[RequestSpec],
    settings: TrialSettings,
    *,
    num_blocks: int,
    cost: StepClock,
    groups: tuple[KvGroup, ...] = UNIFORM,
    max_concurrency: int | None = None,
) -> Simulation:
    """Simulate the requests (already clipped to max_model_len) on a pool of ``num_blocks`` blocks.

    The pool must hold one sequence of max_model_len tokens, as the engine requires; then every request completes.
    """
    limits = BatchLimits(
        settings.max_num_seqs,
        settings.max_num_batched_tokens,
        settings.block_size,
        num_blocks,
        groups,
        caches_prefixes=settings.enable_prefix_caching is not False,
    )
    return simulate_requests(_told_apart(requests, settings), limits, cost, max_concurrency=max_concurrency)


def _told_apart(requests: Sequence[RequestSpec], settings: TrialSettings) -> Sequence[RequestSpec]:
    """``requests`` with a prefix of its own for each adapter: KV of one is never another's."""
    number = 0 if settings.lora_slots is None else settings.lora_slots.number
    if number < 2:
        return requests
    return [
        replace(request, prefix_index=request.prefix_index * number + (adapter_of(request.index, number) or 0))
        for request in requests
    ]
