"""SGLang's KV pool: what is free after loading, less the share that ``mem_fraction_static`` leaves to activations.

    pool = free after loading - free before loading x (1 - mem_fraction_static)

(srt/mem_cache/kv_cache_configurator.py of SGLang 0.5.23, _profile_available_bytes.) Nothing is profiled: activations
and CUDA graphs must get by with the rest. Windows and states have pools of their own there, which are not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.catalog.gpus import GpuProfile
from kvplan.catalog.spec import LatentAttention, ModelSpec, SoftmaxAttention
from kvplan.errors import KvplanError
from kvplan.estimate.dtypes import cache_dtype, serving_dtype
from kvplan.estimate.kv_cache import CacheSettings, size_sequence
from kvplan.estimate.vllm_weights import rank_weight_bytes, stored_formats
from kvplan.units import GIB

CONTEXT_BYTES = GIB // 2
"""What the CUDA context takes before anything is loaded: 0.4 to 0.6 GiB on data-centre GPUs."""
_STATIC_BY_SIZE = {1: 0.88, 2: 0.87, 4: 0.85, 8: 0.81, 16: 0.79}


@dataclass(frozen=True, slots=True)
class SglangSettings:
    """What decides the pool, in SGLang's terms; None: its default for the number of GPUs."""

    mem_fraction_static: float | None = None
    tensor_parallel_size: int = 1
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    device_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SglangPrediction:
    """Bytes of one GPU and the tokens of the pool (``max_total_num_tokens``)."""

    device_memory_bytes: int
    mem_fraction_static: float
    weight_bytes: int
    kv_pool_bytes: int
    bytes_per_token: int
    kv_cache_tokens: int


def predict_sglang(spec: ModelSpec, gpu: GpuProfile, settings: SglangSettings) -> SglangPrediction:
    """The pool of a model whose layers all keep every token. KvplanError for windows, states and cross attention."""
    if not all(_keeps_every_token(layer.mixer) and layer.cross_attention is None for layer in spec.layers):
        raise KvplanError(
            f"{spec.id} has windows or states, whose pools in SGLang are not modelled.", hint="plan it for vLLM"
        )
    tp = settings.tensor_parallel_size
    dtype = serving_dtype(spec.dtype, settings.dtype)
    weight_bytes = rank_weight_bytes(
        spec,
        range(spec.num_layers),
        tensor_parallel_size=tp,
        dtype=dtype,
        formats=stored_formats(spec, settings.quantization),
        max_model_len=spec.max_position_embeddings or 1,
    )
    total = settings.device_memory_bytes or gpu.memory_bytes
    static = settings.mem_fraction_static or _STATIC_BY_SIZE.get(tp, min(_STATIC_BY_SIZE.values()))
    free = total - CONTEXT_BYTES
    pool = int(free - weight_bytes - free * (1 - static))
    kv_dtype = "fp8" if settings.kv_cache_dtype.startswith("fp8") else settings.kv_cache_dtype
    cache = CacheSettings(model_dtype=dtype, kv_dtype=cache_dtype(dtype, kv_dtype), tensor_parallel_size=tp)
    each = size_sequence(spec, 1, cache).bytes_per_token
    return SglangPrediction(total, static, weight_bytes, pool, each, max(pool, 0) // max(each, 1))


def _keeps_every_token(mixer: object) -> bool:
    if isinstance(mixer, SoftmaxAttention):
        return mixer.window_kind == "full"
    return isinstance(mixer, LatentAttention)
