"""TensorRT-LLM's KV pool: a share of what is free once the model is loaded and its largest step has run.

    pool = free_gpu_memory_fraction x (total - context - weights - peak of the step)

(docs/source/features/kvcache.md and tensorrt_llm/_torch/pyexecutor/_util.py of TensorRT-LLM 1.x, there KvCacheCreator,
read at d8ae02ca and in later releases.) It runs the step before it sizes the pool: as few prompts as have
``max_num_tokens`` tokens together, each as long as ``max_seq_len`` allows, and one token of each answer. All that is in
use outside torch by then counts, the CUDA context included. Weights and the step's peak are those that vLLM would have
with such a step, which stand in for its own; captured graphs are not counted. Compared with no start-up.

Before 0.19 the PyTorch backend counts the tokens as if latent attention kept keys and values, although it keeps one
vector for both, so that its pool holds half of what there is room for (calculate_max_num_blocks is called without its
kv_factor: tensorrt_llm/_torch/pyexecutor/resource_manager.py at 9b931c0f, of 0.17, and later).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.trtllm import TrtllmRelease, trtllm_release
from kvplan.catalog.spec import LatentAttention, ModelSpec
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.dtypes import cache_dtype
from kvplan.estimate.kv_cache import components_of
from kvplan.estimate.vllm.activation import cublas_bytes
from kvplan.estimate.vllm.budget import CONTEXT_BYTES
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.settings import ServingSettings

DEFAULT_FRACTION: Final = 0.9
DEFAULT_BLOCK: Final = 32


@dataclass(frozen=True, slots=True)
class TrtllmPrediction:
    """Bytes of one GPU. other_bytes: what the step, the CUDA context and libraries take.

    kv_cache_tokens: in whole blocks.
    """

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
    version: str = "latest",
) -> TrtllmPrediction:
    """The pool of ``spec`` on ``gpu``; ``gpu_memory_utilization`` stands for ``free_gpu_memory_fraction``.

    Layers with a window count like full attention. ``version``: of the PyTorch backend. UsageError
    where the ranks cannot divide the model.
    """
    release = trtllm_release(version)
    found = _after_the_step(spec, gpu, settings, release)
    rank, serving = found.rank, found.settings.serving
    total = settings.device_memory_bytes or gpu.memory_bytes
    # vLLM's newest release has cuBLAS's workspace before its profile run, TensorRT-LLM in the step.
    step_bytes = rank.activation.warm_peak_bytes + cublas_bytes(gpu)
    other = CONTEXT_BYTES + step_bytes + rank.non_torch_bytes
    free = max(total - rank.weight_bytes - other, 0)
    pool = int((settings.gpu_memory_utilization or DEFAULT_FRACTION) * free)
    cache = CacheSettings(
        model_dtype=serving.dtype,
        kv_dtype=cache_dtype(serving.dtype, trtllm_cache_dtype(spec, settings.kv_cache_dtype)),
        tensor_parallel_size=serving.tensor_parallel_size,
    )
    each = sum(part.bytes_per_token + part.window_bytes_per_token for part in components_of(spec.layers, cache))
    block = settings.block_size or DEFAULT_BLOCK
    counted = each * _vectors_counted(spec, release)
    tokens = pool // (block * counted) * block if counted else 0
    return TrtllmPrediction(total, rank.weight_bytes, other, pool, each, block, tokens, serving.dtype)


def trtllm_cache_dtype(spec: ModelSpec, asked: str) -> str:
    """The KV cache's as TensorRT-LLM runs with ``asked``: auto is what a checkpoint of ModelOpt states.

    (KvCacheConfig.dtype "follows the checkpoint's own quant metadata": pull request 16240 of NVIDIA/TensorRT-LLM.)
    """
    stated = spec.quantization.stated_cache_dtype(("modelopt",)) if spec.quantization else None
    return stated if asked == "auto" and stated is not None else asked


def _after_the_step(
    spec: ModelSpec, gpu: GpuProfile, settings: ServingSettings, release: TrtllmRelease
) -> VllmPrediction:
    """vLLM with the step that sizes the pool: it samples one token of each prompt, not ``max_num_seqs``."""
    tokens = settings.max_num_batched_tokens or release.max_num_tokens
    longest = (settings.max_model_len or spec.max_position_embeddings or tokens + 1) - 1
    prompts = -(-tokens // max(min(tokens, longest), 1))
    return predict_vllm(spec, gpu, replace(settings, max_num_batched_tokens=tokens, max_num_seqs=prompts))


def _vectors_counted(spec: ModelSpec, release: TrtllmRelease) -> int:
    """Return how many vectors count for each one that is kept."""
    is_latent = any(isinstance(mixer, LatentAttention) for layer in spec.layers for mixer in layer.mixers)
    return 2 if is_latent and release.counts_latents_twice else 1
