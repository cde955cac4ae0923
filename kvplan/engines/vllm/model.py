"""What the planner expects of vLLM with one model on one device.

On a GPU that is ``predict_vllm``. On a CPU the pool is what ``kv_cache_memory_bytes`` says, in whole blocks
(vllm/v1/worker/cpu_worker.py, determine_available_memory): nothing is measured first, so the prediction is exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kvplan.catalog.devices.gpus import GpuProfile, find_gpu
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import UsageError
from kvplan.estimate.vllm.block_sizes import CPU_BLOCK
from kvplan.estimate.vllm.prediction import VllmPrediction, fill_pool, predict_vllm
from kvplan.machine.device import Device
from kvplan.runs.trials import TrialSettings
from kvplan.sweeps.design import roomy_context
from kvplan.sweeps.forecast.pool import PlainLayout, PlainPool
from kvplan.workload.requests import RequestSpec

_SEATS: Final = {"cpu": 16, "cuda": 128}
_STEP_TOKENS: Final = {"cpu": 2048, "cuda": 2048}
_UTILIZATION: Final = 0.9
_FILLED_SHARE: Final = 0.8
_SPARE_SEQUENCES: Final = 1.3


@dataclass(frozen=True, slots=True)
class VllmModel:
    """An EngineModel. version: of the installation. given: settings by ``--engine-arg`` that no sweep varies."""

    spec: ModelSpec
    device: Device
    version: str
    given: Mapping[str, Any] = field(default_factory=dict)

    def memory(self, settings: TrialSettings) -> PlainPool:
        """UsageError for a context that vLLM refuses whatever the memory."""
        self._refuse_positions(settings)
        found = self._prediction(settings)
        usable = found.kv_cache_tokens // settings.block_size
        return PlainPool(
            outcome="rejected_block_size" if self._refuses_blocks(settings) else found.outcome,
            dtype=found.settings.serving.dtype,
            weight_bytes=found.rank.weight_bytes,
            fixed_bytes=found.rank.requested_bytes - found.rank.available_kv_bytes,
            block_bytes=found.bytes_per_block,
            num_blocks=found.num_blocks,
            usable_blocks=max(usable - 1, 0),  # the pool's null block is never given out
            kv_cache_tokens=found.kv_cache_tokens,
            largest_context=found.largest_max_model_len,
            layout=PlainLayout(found.bytes_per_block / found.block_size),
        )

    def base_settings(self, requests: Sequence[RequestSpec], max_concurrency: int | None) -> TrialSettings:
        """On a CPU a pool that these requests fill to four fifths; on a GPU nine tenths of its memory."""
        on_cpu = self.device.kind == "cpu"
        base = TrialSettings(
            gpu_memory_utilization=_UTILIZATION,
            max_num_seqs=_SEATS[self.device.kind],
            block_size=CPU_BLOCK if on_cpu else 16,
            max_model_len=roomy_context(requests, self.spec.longest_context),
            max_num_batched_tokens=_STEP_TOKENS[self.device.kind],
        )
        if not on_cpu:
            return base
        return base.with_changes(kv_cache_memory_bytes=self._telling_bytes(base, requests, max_concurrency))

    def default_axes(self, base: TrialSettings) -> Mapping[str, Sequence[float | int | str]]:
        """Seats by room for sequences: on a CPU pools from one that holds too little to the usual one."""
        seats = (base.max_num_seqs // 4, base.max_num_seqs)
        if base.kv_cache_memory_bytes is None:
            return {"max_num_seqs": seats, "gpu_memory_utilization": (0.6, base.gpu_memory_utilization)}
        block = self.memory(base).block_bytes
        needed = math.ceil(base.max_model_len / base.block_size)
        short, tight = (needed // 2) * block, (needed + 1) * block
        return {"max_num_seqs": seats, "kv_cache_memory_bytes": (short, tight, base.kv_cache_memory_bytes)}

    def _telling_bytes(self, base: TrialSettings, requests: Sequence[RequestSpec], max_concurrency: int | None) -> int:
        block = self.memory(base).block_bytes
        blocks = sorted(
            (math.ceil((each.num_prompt_tokens + each.num_output_tokens) / base.block_size) for each in requests),
            reverse=True,
        )
        together = sum(blocks[: min(base.max_num_seqs, max_concurrency or len(blocks))])
        longest = math.ceil(base.max_model_len / base.block_size)
        return math.ceil(max(together / _FILLED_SHARE, _SPARE_SEQUENCES * longest) + 1) * block

    def _prediction(self, settings: TrialSettings) -> VllmPrediction:
        given, on_cpu = settings.kv_cache_memory_bytes, self.device.kind == "cpu"
        if on_cpu:
            share = settings.gpu_memory_utilization if given is None else 1.0
            settings = settings.with_changes(device_memory_bytes=self.device.memory_bytes, gpu_memory_utilization=share)
        if self.given:
            settings = settings.with_changes(**self.given)
        measured = settings.with_changes(kv_cache_memory_bytes=None)
        found = predict_vllm(self.spec, self._profile(), measured, self.version)
        if given is None:
            return found
        filled = fill_pool(found.rank, given, found.settings, vllm_release(self.version))
        is_short = (
            on_cpu and filled.outcome != "oom_weights" and given > self.device.memory_bytes - found.rank.weight_bytes
        )
        return replace(filled, outcome="oom_kv_init") if is_short else filled

    def _refuses_blocks(self, settings: TrialSettings) -> bool:
        """Whether its attention on a CPU has no kernel for such blocks (see ``cpu_block_multiple``).

        Latents and states are kept by other kernels, in blocks that vLLM chooses.
        """
        is_plain = not self.spec.is_latent and not self.spec.has_state
        multiple = vllm_release(self.version).cpu_block_multiple
        return self.device.kind == "cpu" and is_plain and settings.block_size % multiple != 0

    def _profile(self) -> GpuProfile:
        return find_gpu("cpu" if self.device.kind == "cpu" else self.device.name)

    def _refuse_positions(self, settings: TrialSettings) -> None:
        longest = self.spec.longest_context
        if longest is not None and settings.max_model_len > longest:
            raise UsageError(
                f"{self.spec.served_id} has {longest:,} positions, and vLLM refuses a max_model_len of "
                f"{settings.max_model_len:,}.",
                hint=f"--max-model-len {longest} at most",
            )
