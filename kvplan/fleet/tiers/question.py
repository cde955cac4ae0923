"""What ``kvplan cache`` is asked, and one curve's part of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvplan.catalog.devices.gpus import GpuCount
from kvplan.catalog.engines import EngineChoice
from kvplan.errors import check
from kvplan.fleet.tiers.curves import CacheCurve
from kvplan.fleet.tiers.links import TierLink
from kvplan.fleet.tiers.splits import SPLITS
from kvplan.fleet.tiers.worth import HOST_BYTES_PER_GPU, TierWorth
from kvplan.settings import ServingSettings

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
