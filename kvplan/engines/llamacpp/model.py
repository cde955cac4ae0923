"""What the planner expects of llama-server with one model on one device; the settings of a sweep that names none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvplan.catalog.spec import ModelSpec
from kvplan.engines.llamacpp.options import server_options, settings_of
from kvplan.estimate.llamacpp import DEFAULT_BATCH, DEFAULT_SLOTS, LlamaCppPrediction, predict_llamacpp
from kvplan.machine.device import Device
from kvplan.runs.trials import TrialSettings
from kvplan.sweeps.design import roomy_context
from kvplan.sweeps.forecast.pool import PlainLayout, PlainPool
from kvplan.workload.requests import RequestSpec

_WHOLE_MEMORY: Final = 1.0
_CELL_TOKENS: Final = 1
_SEATS_FACTORS: Final = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class LlamaCppModel:
    """An EngineModel. given: options of the user, which go before those of the settings."""

    spec: ModelSpec
    device: Device
    given: Mapping[str, str]

    def memory(self, settings: TrialSettings) -> PlainPool:
        """Cells and bytes as kvplan.estimate.llamacpp has them; all of it must fit the device."""
        found = predict_llamacpp(self.spec, settings_of(server_options(settings, self.given, self.spec)))
        return PlainPool(
            outcome=self._outcome(found, settings),
            dtype=self.spec.dtype,
            weight_bytes=found.weight_bytes,
            fixed_bytes=found.fixed_bytes,
            block_bytes=found.bytes_per_token,
            num_blocks=found.kv_cache_tokens,
            usable_blocks=found.kv_cache_tokens // settings.block_size,
            kv_cache_tokens=found.kv_cache_tokens,
            largest_context=found.slot_tokens,
            layout=PlainLayout(float(found.bytes_per_token)),
        )

    def base_settings(self, requests: Sequence[RequestSpec], max_concurrency: int | None) -> TrialSettings:
        """Its own defaults, with slots as long as the requests need several times over."""
        return TrialSettings(
            gpu_memory_utilization=_WHOLE_MEMORY,
            max_num_seqs=DEFAULT_SLOTS,
            block_size=_CELL_TOKENS,
            max_model_len=roomy_context(requests, self.spec.max_position_embeddings),
            max_num_batched_tokens=DEFAULT_BATCH,
        )

    def default_axes(self, base: TrialSettings) -> Mapping[str, Sequence[float | int | str]]:
        """Slots, from one to four times the default."""
        return {"max_num_seqs": (1, *(factor * base.max_num_seqs for factor in _SEATS_FACTORS))}

    def _outcome(self, found: LlamaCppPrediction, settings: TrialSettings) -> str:
        """A slot that is shorter than max_model_len refuses the longest requests, though the server starts."""
        if found.weight_bytes > self.device.memory_bytes:
            return "oom_weights"
        if found.fixed_bytes + found.kv_cache_bytes > self.device.memory_bytes:
            return "oom_kv_init"
        return "ok" if found.slot_tokens >= settings.max_model_len else "rejected_ctx"
