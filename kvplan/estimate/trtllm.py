"""TensorRT-LLM's KV pool: a share of what is free once the model is loaded and its largest step has run.

    pool = free_gpu_memory_fraction x (total - context - weights - peak of the step)

(docs/source/features/kvcache.md and tensorrt_llm/_torch/pyexecutor/_util.py of TensorRT-LLM 1.x.) Weights and the
step's peak are those of vLLM with the same settings, which stand in for its own. Compared with no start-up.

Before 0.19 the PyTorch backend counts the tokens as if latent attention kept keys and values, although it keeps one
vector for both, so that its pool holds half of what there is room for (calculate_max_num_blocks is called without its
kv_factor: tensorrt_llm/_torch/pyexecutor/resource_manager.py at 9b931c0f, of 0.17, and later).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.spec import LatentAttention, ModelSpec
from kvplan.estimate.dtypes import cache_dtype
from kvplan.estimate.kv_cache import CacheSettings, components_of
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.settings import ServingSettings

DEFAULT_FRACTION: Final = 0.9
DEFAULT_BLOCK: Final = 32
_COUNTS_LATENTS_ONCE: Final = (0, 19, 0)


@dataclass(frozen=True, slots=True)
class TrtllmPrediction:
    """Bytes of one GPU. other_bytes: what the step and libraries take. kv_cache_tokens: in whole blocks."""

    device_memory_bytes: int
    weight_bytes: int
    other_bytes: int
    kv_pool_bytes: int
    bytes_per_token: int
    block_size: int
    kv_cache_tokens: int
    dtype: str


def predict_trtllm(
    spec: ModelSpec,
    gpu: GpuProfile,
    settings: ServingSettings = ServingSettings(),
    release: tuple[int, int, int] | None = None,
) -> TrtllmPrediction:
    """The pool of ``spec`` on ``gpu``; ``gpu_memory_utilization`` stands for ``free_gpu_memory_fraction``.

    Layers with a window count like full attention. ``release``: of the PyTorch backend, None: the newest. UsageError
    where the ranks cannot divide the model.
    """
    found = predict_vllm(spec, gpu, settings)
    rank, serving = found.rank, found.settings.serving
    total = settings.device_memory_bytes or gpu.memory_bytes
    other = rank.activation.peak_bytes + rank.non_torch_bytes
    free = max(total - rank.weight_bytes - other, 0)
    pool = int((settings.gpu_memory_utilization or DEFAULT_FRACTION) * free)
    cache = CacheSettings(
        model_dtype=serving.dtype,
        kv_dtype=cache_dtype(serving.dtype, settings.kv_cache_dtype),
        tensor_parallel_size=serving.tensor_parallel_size,
    )
    each = sum(part.bytes_per_token + part.window_bytes_per_token for part in components_of(spec.layers, cache))
    block = settings.block_size or DEFAULT_BLOCK
    counted = each * _vectors_counted(spec, release)
    tokens = pool // (block * counted) * block if counted else 0
    return TrtllmPrediction(total, rank.weight_bytes, other, pool, each, block, tokens, serving.dtype)


def _vectors_counted(spec: ModelSpec, release: tuple[int, int, int] | None) -> int:
    """For each one that is kept."""
    is_latent = any(isinstance(mixer, LatentAttention) for layer in spec.layers for mixer in layer.mixers)
    return 2 if is_latent and release is not None and release < _COUNTS_LATENTS_ONCE else 1
