"""The KV cache's dtype where ``--kv-cache-dtype`` says nothing, and where a checkpoint outvotes it."""

from __future__ import annotations

from typing import Final

from kvplan.catalog.devices.device_support import compute_capability
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.engines import VllmRelease
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import UsageError
from kvplan.estimate.dtypes import cache_dtype
from kvplan.estimate.kv_cache import refuse_scales
from kvplan.settings import ServingSettings

_COMPRESSED: Final = "compressed-tensors"
_SPARSE_IN_8_BITS: Final = {
    "GlmMoeDsaForCausalLM": ("fp8_e4m3", (0, 32, 0)),
    "Glm5NextForCausalLM": ("fp8", (0, 33, 0)),
    "Glm5NextForConditionalGeneration": ("fp8", (0, 33, 0)),
}
"""Architectures whose cache is in 8 bits where nothing is said on GPUs of compute capability 10: as what, and from
which release on (vllm/model_executor/models/config.py, read in 0.32.0 and 0.33.0)."""

_PACKED: Final = "fp8_ds_mla"
_PACKED_ON_12: Final = ("auto", "fp8", "fp8_e4m3")
_PACKED_FROM: Final = (0, 32, 0)
"""Sparse latent attention on consumer Blackwell has one kernel, FlashInfer's, and that has one format for these
(vllm/model_executor/layers/attention/mla_attention.py, _canonicalize_sparse_mla_kv_cache_dtype, read in 0.32.0)."""


def kv_cache_dtype(
    spec: ModelSpec, gpu: GpuProfile, asked: ServingSettings, release: VllmRelease, dtype: str
) -> tuple[str, str]:
    """(what the cache is in, a sentence about it where nobody asked for that, else nothing).

    ``dtype``: of the activations, which decides where neither the settings nor the checkpoint nor the release do.
    """
    if spec.is_compressed:
        refuse_scales(asked.kv_cache_dtype, "latents")
        if asked.kv_cache_dtype in ("bfloat16", "float16", "float32"):
            raise UsageError(
                f"vLLM keeps compressed attention in 8 bits, not in {asked.kv_cache_dtype}.",
                hint="use --kv-cache-dtype fp8",
            )
        return "fp8", "kv_cache_dtype fp8: vLLM keeps compressed attention in no other way."
    stated = cache_of_checkpoint(spec, asked, release)
    if stated is not None:
        return stated, stated_cache_note(stated, release)
    major = compute_capability(gpu)[0]
    if spec.has_indexer and major == 12 and asked.kv_cache_dtype in _PACKED_ON_12 and release.version >= _PACKED_FROM:
        return _PACKED, f"kv_cache_dtype {_PACKED}: what vLLM {release.text} has for {spec.architecture} on this GPU."
    is_blackwell = major == 10
    sparse, first = _SPARSE_IN_8_BITS.get(spec.architecture, ("", None))
    if asked.kv_cache_dtype == "auto" and is_blackwell and first is not None and release.version >= first:
        return sparse, f"kv_cache_dtype {sparse}: vLLM {release.text}'s default for {spec.architecture} on this GPU."
    return cache_dtype(dtype, asked.kv_cache_dtype), ""


def cache_of_checkpoint(spec: ModelSpec, asked: ServingSettings, release: VllmRelease) -> str | None:
    """The dtype that the checkpoint was calibrated for where ``release`` takes it with what is ``asked``, else None."""
    quantization = spec.quantization
    if quantization is None:
        return None
    methods = release.stated_cache
    if spec.is_latent:  # their layers do not ask the weights' format for it
        methods = tuple(method for method in methods if method != _COMPRESSED)
    wins = release.stated_cache_wins and quantization.quant_method == _COMPRESSED
    return quantization.stated_cache_dtype(methods) if wins or asked.kv_cache_dtype == "auto" else None


def stated_cache_note(dtype: str, release: VllmRelease) -> str:
    """What a reader should know of a dtype that the checkpoint decided."""
    taken = f"kv_cache_dtype {dtype}: vLLM {release.text} takes it from the checkpoint"
    if release.stated_cache_wins:
        return f"{taken}; a checkpoint of {_COMPRESSED} decides it whatever is asked for."
    return f"{taken}; --kv-cache-dtype bfloat16 keeps keys and values in 16 bits."
