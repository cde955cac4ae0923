"""A deployment under SGLang: what its pools give a person, and the notes on it."""

from __future__ import annotations

from typing import Final

from kvplan.catalog.devices.device_support import compute_capability
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.facts import release_text
from kvplan.catalog.releases.sglang import sglang_release
from kvplan.catalog.spec import ModelSpec
from kvplan.caveats import Caveat
from kvplan.errors import KvplanError
from kvplan.estimate.placed.placement import Placement, SizedDeployment
from kvplan.estimate.sglang import SglangPrediction, predict_sglang
from kvplan.estimate.sglang_share import listed_memory
from kvplan.estimate.vllm.budget import CONTEXT_BYTES
from kvplan.settings import FilledSettings, ServingSettings
from kvplan.units import format_bytes

_OLDEST_OF_SGLANG: Final = (7, 5)
"""maybe_downgrade_dtype_for_legacy_gpu of load_model_utils.py (0.5.23): "SGLang only supports sm75 and above"."""


def place_sglang(spec: ModelSpec, gpu: GpuProfile, settings: ServingSettings, version: str) -> Placement:
    """Nothing is profiled: what the static share leaves stands for the activations, and whole tokens are blocks."""
    if gpu.vendor != "nvidia":
        raise KvplanError(f"SGLang's memory is not modelled on {gpu.id}.", hint="use a GPU of NVIDIA, or --engine vllm")
    if compute_capability(gpu) < _OLDEST_OF_SGLANG:
        raise KvplanError(f"SGLang does not run on {gpu.id}.", hint="it needs compute capability 7.5, such as a t4's")
    found, release = predict_sglang(spec, gpu, settings, version=version), sglang_release(version)
    total, tokens = found.device_memory_bytes, found.kv_cache_tokens
    free = total - CONTEXT_BYTES
    budget = int(free * found.mem_fraction_static)
    chunk = settings.max_num_batched_tokens or release.chunked_prefill_tokens(listed_memory(gpu, settings))
    assert settings.max_model_len is not None
    filled = FilledSettings.of(
        settings,
        gpu_memory_utilization=found.mem_fraction_static,
        max_num_seqs=found.max_running_requests,
        block_size=1,
        max_model_len=settings.max_model_len,
        max_num_batched_tokens=chunk,
        device_memory_bytes=total,
        kv_cache_dtype=found.kv_cache_dtype,
    )
    limit = _sglang_limit(found, settings.max_model_len)
    deployment = SizedDeployment(
        gpu=gpu.id,
        engine=f"sglang@{release_text(release.version)}",
        settings=filled,
        budget_bytes=budget,
        weight_bytes=found.weight_bytes,
        activation_peak_bytes=free - budget,
        overhead_bytes=CONTEXT_BYTES + budget - found.weight_bytes - found.kv_pool_bytes,
        kv_pool_bytes=max(found.kv_pool_bytes, 0),
        num_blocks=tokens,
        block_size=1,
        kv_cache_tokens=tokens,
        max_concurrency=found.sequences_of(settings.max_model_len),
        fits=limit is None,
        limit=limit,
        longest_context=tokens if limit is not None and tokens and found.max_running_requests else None,
    )
    notes = (
        Caveat(
            "SGLang profiles nothing: what stands under activations is what mem_fraction_static leaves to them and to "
            "CUDA graphs. Too few start-ups were compared for an interval, and no speed is told."
        ),
        f"SGLang keeps {found.bytes_per_token:,} B for a token, and runs at most {found.max_running_requests:,} "
        "requests at once.",
    )
    return Placement(deployment, lambda num_tokens: int(found.sequences_of(num_tokens)), notes)


def _sglang_limit(found: SglangPrediction, context_tokens: int) -> str | None:
    if found.kv_pool_bytes <= 0:
        return f"the weights leave nothing of mem_fraction_static: {format_bytes(-found.kv_pool_bytes)} short"
    if not found.max_running_requests or not found.kv_cache_tokens:
        return "no room for one sequence"
    if found.kv_cache_tokens < context_tokens:
        return f"longest sequence that fits: {found.kv_cache_tokens:,} tokens"
    return None
