"""What ``kvplan cache`` is asked, and one curve's part of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvplan.catalog.devices.gpus import GpuCount, parse_gpu_count
from kvplan.catalog.engines import EngineChoice
from kvplan.errors import UsageError, check
from kvplan.fleet.tiers.curves import CacheCurve
from kvplan.fleet.tiers.splits import SPLITS
from kvplan.fleet.tiers.worth import HOST_BYTES_PER_GPU, TierLink, TierWorth
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
MOST_REPLICAS: Final = 1024


@dataclass(frozen=True)
class CacheQuestion:
    """settings: those of one replica, with each of kv_cache_dtypes. Sizes are a replica's, or of the shared tier.

    host_bytes, nvme_bytes: a size that is asked about, else None: one is proposed.
    """

    gpus: tuple[GpuCount, ...]
    engine: EngineChoice
    settings: ServingSettings
    kv_cache_dtypes: tuple[str, ...]
    longest_context: int | None = None
    num_replicas: int = 1
    split: str = "round-robin"
    host_bytes: int | None = None
    nvme_bytes: int | None = None
    host_bytes_per_second: float | None = None
    nvme_bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        good = 1 <= self.num_replicas <= MOST_REPLICAS
        check(good, f"--replicas must be from 1 to {MOST_REPLICAS:,}", "it is how many caches the trace is split over")
        check(self.split in SPLITS, f"Unknown --router '{self.split}'", ", ".join(SPLITS))


@dataclass(frozen=True, slots=True)
class Distances:
    """Reuse distances of tokens that are found again: seconds since they were used last, and bytes used since."""

    share: float
    seconds: float
    num_bytes: int


@dataclass(frozen=True)
class LayoutAnswer:
    """One layout and KV format. in_pool: what the GPUs' own pools find, as a tier without links.

    tiers: host memory of several sizes, smallest first; asked: the size that was asked for, or the one that is
    proposed; asked_nvme: drives below that. gpus_of_tier: GPUs that one tier is beside. break_even_tokens: the shortest
    hit that host memory brings sooner than it is computed. prefill_seconds: an engine's, of all prompts uncached.
    """

    gpu: GpuCount
    num_gpus: int
    gpus_of_tier: int
    curve: CacheCurve
    in_pool: TierWorth
    tiers: tuple[TierWorth, ...]
    asked: TierWorth
    asked_nvme: TierWorth | None
    host: TierLink
    nvme: TierLink
    needed_bytes: int
    break_even_tokens: int | None
    prefill_seconds: float
    distances: tuple[Distances, ...]
    usd_per_hour: float | None

    @property
    def usual_bytes(self) -> int:
        """Host memory that nodes usually have for one tier."""
        return HOST_BYTES_PER_GPU * self.gpus_of_tier

    def share(self, num_tokens: int) -> float:
        """Return the share of the trace's prompt tokens."""
        return num_tokens / self.curve.num_prompt_tokens


@dataclass(frozen=True)
class CacheAnswer:
    """All curves of one trace and model. seconds: from the first request to the last; 0 where it has no times."""

    trace: str
    model: str
    release: str
    num_requests: int
    num_left_out: int
    num_prompt_tokens: int
    seconds: float
    question: CacheQuestion
    layouts: tuple[LayoutAnswer, ...]
    notes: tuple[str, ...]

    def per_hour(self, seconds: float) -> float:
        """Return a figure of the trace as that of an hour; as it is where the trace has no times."""
        return seconds * 3600 / self.seconds if self.seconds else seconds


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
