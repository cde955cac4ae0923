"""The KV cache's dtype where ``--kv-cache-dtype`` says nothing, and where a checkpoint or a kernel outvotes it.

Sparse latent attention in 8 bits is kept as its kernel reads it: FlashMLA packs 656 B with scales (``fp8_ds_mla``),
FlashInfer and AITER read plain rows. Which kernel it is (vllm/platforms/cuda.py and rocm.py, _get_backend_priorities;
supported_kv_cache_dtypes of the sparse kernels in vllm/v1/attention/backends/mla;
_canonicalize_sparse_mla_kv_cache_dtype in vllm/model_executor/layers/attention/mla_attention.py;
vllm/model_executor/models/config.py; 0.11.0 to 0.33.0):

    GPU                  packed                                             plain
    Hopper               fp8; fp8_e4m3 before 0.30                          fp8_e4m3 from 0.30 on
    Blackwell's 10.x     up to 0.17; in 0.18 with more than 16 heads of     in 0.18 otherwise; from 0.19 on
                         a rank, or heads that FlashInfer does not take
    consumer Blackwell   from 0.24 on, whatever is asked for but 16 bits
    AMD                                                                     always
"""

from __future__ import annotations

from typing import Final

from kvplan.catalog.devices.device_support import compute_capability
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.catalog.spec import LatentAttention, ModelSpec
from kvplan.errors import UsageError
from kvplan.estimate.cache_entries import refuse_scales
from kvplan.estimate.dtypes import cache_dtype
from kvplan.estimate.vllm.shared_pages import MXFP8, is_shared
from kvplan.settings import ServingSettings

_COMPRESSED: Final = "compressed-tensors"
_PACKED: Final = "fp8_ds_mla"


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
        if compute_capability(gpu)[0] == 10 and any(is_shared(layer.mixer) for layer in spec.layers):
            return MXFP8, f"kv_cache_dtype {MXFP8}: what vLLM has for {spec.architecture} on this GPU."
        return "fp8", "kv_cache_dtype fp8: vLLM keeps compressed attention in no other way."
    stated = cache_of_checkpoint(spec, asked, release)
    if stated is not None:
        return stated, stated_cache_note(stated, release)
    if _is_packed(spec, gpu, asked, release):
        return _PACKED, f"kv_cache_dtype {_PACKED}: what vLLM {release.text} has for {spec.architecture} on this GPU."
    is_blackwell = compute_capability(gpu)[0] == 10
    sparse = release.sparse_cache_on_10.get(spec.architecture)
    if asked.kv_cache_dtype == "auto" and is_blackwell and sparse is not None:
        return sparse, f"kv_cache_dtype {sparse}: vLLM {release.text}'s default for {spec.architecture} on this GPU."
    return cache_dtype(dtype, asked.kv_cache_dtype), ""


def _is_packed(spec: ModelSpec, gpu: GpuProfile, asked: ServingSettings, release: VllmRelease) -> bool:
    """Whether sparse latent attention is kept in rows of 656 B, though they were not asked for by name.

    Rows without positions (GLM 5.3 Flash) are FlashInfer's, plain in 8 bits too (supports_combination of FlashMLA's
    sparse kernel, read in 0.33.0).
    """
    if not spec.has_indexer or spec.rope is None:
        return False
    major = compute_capability(gpu)[0]
    if asked.kv_cache_dtype == "auto":
        return release.packs_sparse_by_default or (major == 12 and release.packs_sparse_on_12)
    if asked.kv_cache_dtype not in ("fp8", "fp8_e4m3"):
        return False
    if major == 9:
        return asked.kv_cache_dtype == "fp8" or not release.plain_sparse_on_9
    if major == 10:
        return not _is_flashinfers(spec, asked.tensor_parallel_size, release)
    return major == 12  # modified builds before 0.24, too


def _is_flashinfers(spec: ModelSpec, tensor_parallel_size: int, release: VllmRelease) -> bool:
    """Whether Blackwell's data-centre GPUs run FlashInfer's sparse kernel, in 8 bits."""
    mixers = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, LatentAttention)]
    if any(mixer.qk_nope_head_size not in release.sparse_flashinfer_heads for mixer in mixers):
        return False
    most = release.sparse_flashinfer_most_heads
    return most is None or all(mixer.num_heads <= most * tensor_parallel_size for mixer in mixers)


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
