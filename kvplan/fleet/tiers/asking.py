"""The question of ``kvplan cache`` from values as people write them, on the command line and in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvplan.catalog.devices.gpus import parse_gpu_count
from kvplan.catalog.engines import EngineChoice
from kvplan.errors import UsageError
from kvplan.fleet.tiers.question import CacheQuestion
from kvplan.fleet.tiers.splits import SPLITS
from kvplan.setting_values import split_list
from kvplan.settings import KNOBS, ServingSettings
from kvplan.units import parse_bytes, parse_tokens

CACHE_SETTINGS: Final = (
    "dtype",
    "quantization",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "speculative_model",
    "num_speculative_tokens",
)
"""Settings of one replica that count."""
DEFAULT_GPU: Final = "h100"
_DEFAULT_CACHES: Final = ("auto", "fp8")
_GB: Final = 1e9


def cache_question(
    engine: EngineChoice,
    settings: ServingSettings,
    *,
    gpu: Sequence[str] | None = None,
    kv_cache_dtype: Sequence[str] | None = None,
    max_model_len: str | None = None,
    host_memory: str | None = None,
    nvme: str | None = None,
    host_bandwidth: float | None = None,
    nvme_bandwidth: float | None = None,
    replicas: int = 1,
    router: str = SPLITS[0],
) -> CacheQuestion:
    """Return the question that options of ``kvplan cache`` ask. UsageError for a value that cannot be read."""
    read = KNOBS["kv_cache_dtype"].canonical_name
    return CacheQuestion(
        gpus=tuple(parse_gpu_count(name) for name in split_list(gpu) or (DEFAULT_GPU,)),
        engine=engine,
        settings=settings,
        kv_cache_dtypes=tuple(read(name) for name in split_list(kv_cache_dtype) or _DEFAULT_CACHES),
        longest_context=None if max_model_len is None else parse_tokens(max_model_len),
        num_replicas=replicas,
        split=router,
        host_bytes=_size("--host-memory", host_memory),
        nvme_bytes=_size("--nvme", nvme),
        host_bytes_per_second=_bandwidth("--host-bandwidth", host_bandwidth),
        nvme_bytes_per_second=_bandwidth("--nvme-bandwidth", nvme_bandwidth),
    )


def _size(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_bytes(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error.message}", hint=error.hint) from error


def _bandwidth(option: str, number: float | None) -> float | None:
    if number is None:
        return None
    if not 0 < number < 1e6:
        raise UsageError(f"{option} must be above 0, got {number:g}.", hint="in GB/s, such as 50")
    return number * _GB
