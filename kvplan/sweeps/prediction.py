"""What is expected of a trial before its worker starts it: memory from the config alone, time from a forecast."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.kvplan_engine import EnginePrediction, EngineSettings, engine_dtype, predict
from kvplan.sweeps.forecast import forecast_trial
from kvplan.sweeps.machine import SweepDevice, has_bfloat16_units
from kvplan.sweeps.step_cost import StepCost, guess_step_cost
from kvplan.sweeps.trial import TrialSettings
from kvplan.sweeps.workload import RequestSpec, clip_requests


@dataclass(frozen=True, slots=True)
class TrialPrediction:
    """The planner's view of one trial. ``seconds`` is the measured part alone, without loading or carving."""

    status: str
    dtype: str
    block_bytes: int
    num_blocks: int
    largest_context: int
    max_concurrency: int
    output_throughput: float | None
    seconds: float

    @property
    def is_measured(self) -> bool:
        """Whether the trial is expected to serve its workload."""
        return self.status in ("ok", "queued", "preempted")


@dataclass(frozen=True, slots=True)
class Predictor:
    """Predicts trials of one model on one device with one workload.

    time_scale: measured over predicted seconds of the trials so far, 1 before the first.
    """

    spec: ModelSpec
    device: SweepDevice
    requests: tuple[RequestSpec, ...]
    max_concurrency: int | None = None
    time_scale: float = 1.0

    def with_time_scale(self, time_scale: float) -> Predictor:
        return replace(self, time_scale=time_scale)

    def memory(self, settings: TrialSettings) -> EnginePrediction:
        """The engine's memory at these settings, from config and settings alone."""
        return predict(self.spec, self._engine_settings(settings), self.device.memory_bytes)

    def trial(self, settings: TrialSettings) -> TrialPrediction:
        memory = self.memory(settings)
        status, concurrency, throughput, seconds = str(memory.outcome), 0, None, 0.0
        if memory.outcome == "ok":
            forecast = forecast_trial(
                clip_requests(self.requests, settings.max_model_len).requests,
                settings,
                num_blocks=memory.num_blocks,
                cost=self.step_cost(settings, memory),
                max_concurrency=self.max_concurrency,
            )
            status, concurrency = forecast.status, forecast.max_running
            throughput, seconds = forecast.output_throughput, forecast.seconds
        return TrialPrediction(
            status=status,
            dtype=self.dtype(settings),
            block_bytes=memory.block_bytes,
            num_blocks=memory.num_blocks,
            largest_context=memory.largest_context,
            max_concurrency=concurrency,
            output_throughput=throughput,
            seconds=seconds,
        )

    def step_cost(self, settings: TrialSettings, memory: EnginePrediction) -> StepCost:
        """Every parameter but embeddings is multiplied once per token; the head only for tokens that are sampled."""
        head = self.spec.vocab_size * self.spec.hidden_size
        embeddings = head if self.spec.tie_word_embeddings else 2 * head
        cost = guess_step_cost(
            self.device.kind,
            body_parameters=max(self.spec.num_active_parameters - embeddings, 0),
            head_parameters=head,
            weight_bytes=self.spec.num_active_parameters * element_bytes(self.dtype(settings)),
            kv_bytes_per_token=memory.block_bytes / settings.block_size,
        )
        return cost.scaled(self.time_scale)

    def largest_step_seconds(self, settings: TrialSettings) -> float:
        """The step that the engine profiles when it starts: as many tokens as fit one step."""
        cost = self.step_cost(settings, self.memory(settings))
        return cost.seconds(settings.max_num_batched_tokens, settings.max_num_seqs, settings.max_num_batched_tokens)

    def dtype(self, settings: TrialSettings) -> str:
        return engine_dtype(self.spec, self._engine_settings(settings))

    def _engine_settings(self, settings: TrialSettings) -> EngineSettings:
        return EngineSettings(
            gpu_memory_utilization=settings.gpu_memory_utilization,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            block_size=settings.block_size,
            max_model_len=settings.max_model_len,
            dtype=settings.dtype,
            kv_cache_dtype=settings.kv_cache_dtype,
            device="cuda" if self.device.kind == "cuda" else "cpu",
            has_bfloat16_units=has_bfloat16_units(),
        )


def predicted_columns(prediction: TrialPrediction) -> dict[str, object]:
    """The prediction's part of a row."""
    return {
        "dtype": prediction.dtype,
        "block_bytes_predicted": prediction.block_bytes,
        "num_blocks_predicted": prediction.num_blocks,
        "predicted_status": prediction.status,
        "pred_max_concurrency": prediction.max_concurrency,
        "pred_output_throughput": prediction.output_throughput,
        "predicted_seconds": round(prediction.seconds, 3),
    }
