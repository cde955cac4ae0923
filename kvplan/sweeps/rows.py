"""A row of the results: what was known before the trial, and what came back from it."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Final, cast

from kvplan.machine.device import Device, Reserve
from kvplan.runs.answers.beside import ratios
from kvplan.runs.columns import COLUMN_NAMES, Row
from kvplan.runs.directory import TRIAL_SCHEMA, Series, TrialRecord
from kvplan.runs.rows import empty_row
from kvplan.runs.trials import TrialSettings, rate_as_json
from kvplan.sweeps.drafting import engine_config
from kvplan.sweeps.engine_names import OWN_ENGINE
from kvplan.sweeps.forecast.prediction import predicted_columns
from kvplan.sweeps.forecast.under_load import PreparedTrial
from kvplan.sweeps.options import COUNTED_FORMAT
from kvplan.workload.requests import WorkloadSpec

_SPEEDS: Final = (
    "pred_output_throughput",
    "pred_median_ttft_ms",
    "pred_median_tpot_ms",
    "pred_median_itl_ms",
    "prediction_origin",
)
_WITH_ACTIVATIONS: Final = (
    "num_blocks_predicted",
    "kv_cache_tokens_predicted",
    "predicted_status",
    "pred_max_concurrency",
    *_SPEEDS,
    "pred_error_pct",
)
"""Columns of what follows from the activations and the speed of the engine's own decoder."""


@dataclass(frozen=True, slots=True)
class SweepIdentity:
    """What all rows of a sweep have in common. usd_per_hour: the device's price, if known.

    shares_layers: equal layers use the same dummy weights. implementation: what is expected to compute the model, of
    what model_impl allows; None: nothing is computed.
    speculative_config: who proposes tokens, as it was written; None: nobody.
    rounded_activations: what weights in few bits are multiplied with is rounded to this; None: it is not.
    engine: what serves, None for kvplan's own. commit: of the checkout that measures, None outside of one.
    has_published_weights: where no format is asked for, the engine is told the size of the weights as they are
    published, which the planner predicts. is_deployed: it is told all that a rank takes beside its pool.
    """

    run_id: str
    model_id: str
    device: Device
    workload: WorkloadSpec
    load_format: str
    slo_seconds: Mapping[str, float] = field(default_factory=dict)
    usd_per_hour: float | None = None
    has_published_weights: bool = False
    is_deployed: bool = False
    shares_layers: bool = False
    implementation: str | None = None
    model_impl: str = "auto"
    rounded_activations: str | None = None
    engine: str | None = None
    commit: str | None = None
    speculative_config: str | None = None

    @property
    def is_counted(self) -> bool:
        """Whether nothing is computed."""
        return self.load_format == COUNTED_FORMAT

    def weights_origin(self, settings: TrialSettings) -> str | None:
        """See the column of this name."""
        if not self.is_counted:
            return "loaded" if self.engine is None else None
        is_told = self.is_deployed or (self.has_published_weights and settings.quantization == "auto")
        return "predicted" if is_told else "counted"


def row_before(identity: SweepIdentity, prepared: PreparedTrial) -> Row:
    """What is known before a worker starts the trial: identity, settings, workload, prediction."""
    trial, workload, prediction = prepared.trial, prepared.workload, prepared.prediction
    settings, device = trial.settings, identity.device
    row = empty_row()
    row |= {
        "run_id": identity.run_id,
        "trial_id": trial.trial_id,
        "trial_number": trial.number,
        "design_parts": ";".join(trial.planes),
        "model_id": identity.model_id,
        "device": device.kind,
        "device_name": device.name,
        "node": platform.node() or None,
        "engine": identity.engine or OWN_ENGINE,
        "kv_cache_dtype": settings.kv_cache_dtype,
        "load_format": identity.load_format,
        "weights_origin": identity.weights_origin(settings),
        "dummy_layers": "shared" if identity.shares_layers else None,
        "model_impl": identity.implementation,
        "activation_quantization": identity.rounded_activations,
        "commit": identity.commit,
        "seed": workload.seed,
        "run_number": trial.run_number,
        "rerun_of": trial.rerun_of,
        "rerun_reason": trial.rerun_reason,
        "started_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "max_num_seqs": settings.max_num_seqs,
        "block_size": settings.block_size,
        "max_model_len": settings.max_model_len,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "kv_cache_memory_bytes": settings.kv_cache_memory_bytes,
        "quantization": settings.quantization,
        "group_size": settings.group_size,
        "max_loras": settings.max_loras,
        "max_lora_rank": settings.max_lora_rank,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "pipeline_parallel_size": settings.pipeline_parallel_size,
        "enable_expert_parallel": settings.enable_expert_parallel,
        "num_speculative_tokens": settings.num_speculative_tokens if identity.engine is None else None,
        "speculative_config": _speculative_config(identity, settings),
        "device_memory_bytes": device.memory_bytes,
        "workload": workload.as_text(),
        "num_prompts": workload.num_prompts,
        "request_rate": rate_as_json(workload.offered_rate),
        "burstiness": workload.burstiness,
        "max_concurrency": workload.max_concurrency,
        "num_clipped_prompts": prediction.requests.num_clipped,
    }
    row |= predicted_columns(prediction)
    if settings.kv_cache_dtype == "auto":
        row["kv_cache_dtype"] = prediction.dtype
    return row


def _speculative_config(identity: SweepIdentity, settings: TrialSettings) -> str | None:
    """See the column of this name."""
    if identity.speculative_config is None or not settings.num_speculative_tokens:
        return None
    return json.dumps(engine_config(identity.speculative_config, settings.num_speculative_tokens))


def predicted_by_reserve(prepared: PreparedTrial, reserve: Reserve | None) -> Row:
    """The prediction's columns once more, by what the engine kept free of a GPU, as it said before it made the pool.

    None where it said nothing: on a CPU, and where it did not get there.
    """
    return {} if reserve is None else predicted_columns(prepared.with_reserve(reserve).prediction)


def usd_per_million_tokens(usd_per_hour: float | None, output_throughput: float | None) -> float | None:
    """Price of a million output tokens at this throughput; None if either is not known."""
    if usd_per_hour is None or not output_throughput:
        return None
    return usd_per_hour / 3600 / output_throughput * 1e6


def finished_record(
    identity: SweepIdentity,
    row: Row,
    measured: Row,
    series: Series | None,
    trial_seconds: float,
) -> TrialRecord:
    """The record to store. ``measured``: the worker's or runner's part of the row. An undeclared column is a bug."""
    whole = row | measured
    whole["trial_seconds"] = round(trial_seconds, 4)
    unknown = whole.keys() - set(COLUMN_NAMES)
    assert not unknown, f"columns without a definition: {sorted(unknown)}"
    if whole["model_impl"] == "transformers":  # of its activations and speed nothing was predicted
        whole |= cast(Row, dict.fromkeys(_WITH_ACTIVATIONS))
    if identity.engine is not None and whole["prediction_origin"] not in ("measured", "calibrated"):
        # a data sheet says nothing of another engine
        whole |= cast(Row, dict.fromkeys(_SPEEDS))
    whole["usd_per_mtok_out"] = usd_per_million_tokens(identity.usd_per_hour, whole["output_throughput"])
    whole |= cast(Row, ratios(whole))
    predicted, actual = whole["pred_max_concurrency"], whole["meas_max_concurrency"]
    if predicted is not None and actual:
        whole["pred_error_pct"] = 100 * (predicted - actual) / actual
    return {"schema": TRIAL_SCHEMA, "row": whole, "series": series}
