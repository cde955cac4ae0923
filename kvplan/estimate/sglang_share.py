"""SGLang's ``mem_fraction_static`` where nobody sets it: what is not left for activations and CUDA graphs.

Read in server_args.py (from 0.5.19 on arg_groups/memory_hook.py) and configs/model_config.py of the releases named:

0.4.6, 0.4.7     a share by the number of GPUs that share the layers, larger on GPUs of more than 96 GiB
0.4.8 to 0.5.2   so many GiB free by the GPU's memory, and more with every GPU
0.5.3 to 0.5.23  a sum: attention's own buffers, the activations of a prefill chunk, CUDA graphs, and more with every
                 GPU and every group that attends beside others; at least 10 GiB on GPUs of more than 60

GPUs that share the layers are those of tensor and pipeline parallelism alike. From 0.4.8 on a model that sees images
has 0.95 of the share, and less where its encoder is larger than that of ViT-L/14 (``adjust_mem_fraction_for_vlm``,
which counts 24 layers where the config has no ``num_hidden_layers``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvplan.catalog.devices.device_support import compute_capability
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.sglang import SglangRelease, sglang_release
from kvplan.catalog.spec import LatentAttention, ModelSpec
from kvplan.settings import ServingSettings
from kvplan.units import GIB, MIB

_META_MIB, _PREFILL_MIB_PER_TOKEN, _GRAPH_MIB_PER_ROW, _GPU_MIB = 512, 1.5, 2, 128
_GROUP_MIB_PER_ROW, _GROUP_MIB_PER_ROW_OF_MANY, _MANY_ROWS = 3, 1.5, 300
_LEAST_MIB_ON_LARGE_GPUS, _LARGE_GPU_MIB = 10 * 1024, 60 * 1024
_LEAST_CHUNK: Final = 2048
_PROMPT_GRAPH_MIB, _LATENT_PROMPT_GRAPHS_MIB = 8, 1536
_FIRST_SHARES: Final = ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88))
_FREE_GIB: Final = ((35, 2.8, 0.1), (90, 9.5, 0.5), (160, 12.0, 0.5))
_FREE_GIB_OF_LARGEST, _GIB_OF_GROUPS = 32.0, 4.0
_IMAGES_SHARE, _ENCODER_SHARE, _LEAST_ENCODER, _MOST_ENCODER = 0.95, 0.1, 0.8, 1.05
_USUAL_ENCODER: Final = (24, 1024)
_HOPPER, DATA_CENTRE_BLACKWELL = 9, 10
"""Major compute capabilities."""
_LARGE_HOPPER_BYTES, _MOST_RAISED_ROWS = 60 * GIB, 512
_FEATURES_MIB, _FEATURES_MIB_OF_MANY, _MANY_REQUESTS = 1024, 3072, 400
"""Room on the GPU for features of images where ``serves_images_on_hopper`` (model_overrides/qwen3_vl.py)."""


def default_static_fraction(
    memory_bytes: int,
    num_gpus: int,
    attention_groups: int = 1,
    release: SglangRelease | None = None,
    prompt_graphs_mib: float = 0.0,
    *,
    graph_rows: int | None = None,
    chunk_tokens: int | None = None,
) -> float:
    """Return the share of a model without images on GPUs of ``memory_bytes``.

    ``num_gpus`` share the layers. ``graph_rows``: sequences of the largest decode step that is captured;
    ``chunk_tokens``: of prompts in a step. None: the release's, where all GPUs share each layer.
    """
    release = release or sglang_release()
    total_mib = memory_bytes / MIB
    if release.static_share == "shares":
        return _share_by_gpus(total_mib, num_gpus)
    if release.static_share == "tiers":
        reserved = _reserved_by_memory(memory_bytes / GIB, num_gpus) + 1024 * _GIB_OF_GROUPS * (attention_groups > 1)
        return max(round((total_mib - reserved) / total_mib, 3), 0.0)
    chunk = max(chunk_tokens or release.chunked_prefill_tokens(memory_bytes), _LEAST_CHUNK)
    graphs = release.largest_graph_rows(memory_bytes, num_gpus) if graph_rows is None else graph_rows
    reserved = _META_MIB + chunk * _PREFILL_MIB_PER_TOKEN + graphs * _GRAPH_MIB_PER_ROW + num_gpus * _GPU_MIB
    if attention_groups > 1:
        each = _GROUP_MIB_PER_ROW + (_GROUP_MIB_PER_ROW_OF_MANY if graphs > _MANY_ROWS else 0)
        reserved += graphs * attention_groups * each
    reserved += prompt_graphs_mib
    if total_mib > _LARGE_GPU_MIB:
        reserved = max(reserved, _LEAST_MIB_ON_LARGE_GPUS)
    return max(round((total_mib - reserved) / total_mib, 3), 0.0)


def static_fraction(
    spec: ModelSpec, gpu: GpuProfile, settings: ServingSettings, attention_groups: int, release: SglangRelease
) -> float:
    """Return the share of ``spec`` on GPUs of ``settings``, whose groups attend beside each other or are one."""
    tensor = settings.tensor_parallel_size * attention_groups
    memory, seats = listed_memory(gpu, settings), settings.max_num_seqs
    rows = release.largest_graph_rows(memory, tensor, seats)
    if seats is not None and seats <= _MOST_RAISED_ROWS and _serves_images_on_hopper(spec, gpu, release):
        rows = max(rows, seats)
    chunk = settings.max_num_batched_tokens or release.chunked_prefill_tokens(memory)
    share = default_static_fraction(
        memory,
        tensor * settings.pipeline_parallel_size,
        attention_groups,
        release,
        _prompt_graphs_mib(spec, gpu, chunk, settings.pipeline_parallel_size, attention_groups, release),
        graph_rows=rows,
        chunk_tokens=chunk,
    )
    return share * _share_beside_images(spec, release)


def listed_memory(gpu: GpuProfile, settings: ServingSettings) -> int:
    """Return the bytes that nvidia-smi lists, by which releases choose (``get_nvgpu_memory_capacity``)."""
    return settings.device_memory_bytes or gpu.listed_memory_bytes or gpu.memory_bytes


def image_bytes(spec: ModelSpec, gpu: GpuProfile, max_num_seqs: int | None, release: SglangRelease) -> int:
    """Return what is kept off the pools for images (``mm_runtime_reservation_gb``), on one node."""
    if not sees_images(spec, release):
        return 0
    if not _serves_images_on_hopper(spec, gpu, release):
        return release.image_cache_mib * MIB
    return MIB * (_FEATURES_MIB_OF_MANY if (max_num_seqs or 0) >= _MANY_REQUESTS else _FEATURES_MIB)


def sees_images(spec: ModelSpec, release: SglangRelease) -> bool:
    """Return whether SGLang serves ``spec`` with its encoder of images."""
    has_encoder = isinstance(spec.raw_config.get("vision_config"), Mapping)
    return has_encoder and spec.architecture not in release.without_images


def _serves_images_on_hopper(spec: ModelSpec, gpu: GpuProfile, release: SglangRelease) -> bool:
    """Whether ``spec`` is served by the settings that large GPUs of Hopper have for it."""
    is_large = compute_capability(gpu)[0] == _HOPPER and gpu.memory_bytes >= _LARGE_HOPPER_BYTES
    return is_large and spec.architecture in release.serves_images_on_hopper


def _share_by_gpus(total_mib: float, num_gpus: int) -> float:
    share = next(share for least, share in _FIRST_SHARES if num_gpus >= least) if total_mib <= 80 * 1024 else 0.88
    if total_mib > 96 * 1024:
        share = min(share + 48 * 1024 * (1 - share) / total_mib, (total_mib - 18 * 1024) / total_mib)
    return share


def _reserved_by_memory(total_gib: float, num_gpus: int) -> float:
    """MiB that are left free."""
    for below, free_gib, of_each in _FREE_GIB:
        if total_gib < below:
            return 1024 * (free_gib + of_each * num_gpus)
    return 1024 * _FREE_GIB_OF_LARGEST


def _prompt_graphs_mib(
    spec: ModelSpec,
    gpu: GpuProfile,
    chunk_tokens: int,
    num_stages: int,
    attention_groups: int,
    release: SglangRelease,
) -> float:
    """MiB for captured steps that read prompts; 0 where none are."""
    if not _reserves_for_prompts(spec, gpu, num_stages, attention_groups, release):
        return 0.0
    return _LATENT_PROMPT_GRAPHS_MIB if _is_latent(spec) else _PROMPT_GRAPH_MIB * _num_prompt_graphs(chunk_tokens)


def captures_prompts(
    spec: ModelSpec, gpu: GpuProfile, num_stages: int, attention_groups: int, release: SglangRelease
) -> bool:
    """Return whether steps that read prompts are captured."""
    if compute_capability(gpu)[0] == DATA_CENTRE_BLACKWELL and spec.architecture in release.uncaptured_on_blackwell:
        return False
    return _reserves_for_prompts(spec, gpu, num_stages, attention_groups, release)


def _reserves_for_prompts(
    spec: ModelSpec, gpu: GpuProfile, num_stages: int, attention_groups: int, release: SglangRelease
) -> bool:
    """Whether they are to be captured when the share is found (``disable_breakable_cudagraph_if_incompatible``)."""
    if not release.captures_prompts or gpu.vendor != "nvidia":
        return False
    if spec.architecture in release.uncaptured_architectures:
        return False
    has_images = sees_images(spec, release)
    is_latent = _is_latent(spec) and not has_images  # the list of those with images has latent ones
    kinds = {
        "stages": num_stages > 1,
        "groups": attention_groups > 1,
        "latents": is_latent,
        "plain latents": is_latent and not spec.has_indexer,
    }
    if any(kinds[kind] for kind in release.uncaptured_prompts):
        return False
    return not has_images or spec.architecture in release.captured_with_images


def _is_latent(spec: ModelSpec) -> bool:
    return any(isinstance(mixer, LatentAttention) for layer in spec.layers for mixer in layer.mixers)


def _num_prompt_graphs(most_tokens: int) -> int:
    """Count the sizes that are captured (``_generate_piecewise_cuda_graph_tokens``)."""
    spans = (
        (4, 33, 4),
        (48, 257, 16),
        (288, 513, 32),
        (576, 1025, 64),
        (1280, 4097, 256),
        (4608, most_tokens + 1, 512),
    )
    return sum(size <= most_tokens for span in spans for size in range(*span))


def _share_beside_images(spec: ModelSpec, release: SglangRelease) -> float:
    if not release.adjusts_for_images or not sees_images(spec, release):
        return 1.0
    encoder, (layers, hidden) = spec.raw_config["vision_config"], _USUAL_ENCODER
    size = encoder.get("num_hidden_layers", layers) * encoder.get("hidden_size", hidden) ** 2 / (layers * hidden**2)
    found: float = _IMAGES_SHARE * min(max(1 - _ENCODER_SHARE * (size - 1), _LEAST_ENCODER), _MOST_ENCODER)
    return found
