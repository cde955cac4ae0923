"""The all-reduce model of a plan beside what nccl-tests printed elsewhere (bus bandwidths, and times of messages)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile, find_gpu
from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.estimate.speed.steps.clocks import BEST, USUAL
from kvplan.estimate.speed.steps.collectives import LinkEfficiency, ring_over
from kvplan.estimate.speed.steps.rank_step import KernelSpeed

_LARGE: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class PublishedReduce:
    """``gigabytes_per_second``: bus bandwidth, low and high end of what was printed or confirmed, of large messages."""

    gpu: str
    num_gpus: int
    gigabytes_per_second: tuple[float, float]
    source: str
    nodes: int = 1
    is_bridged: bool = False

    @property
    def profile(self) -> GpuProfile:
        gpu = find_gpu(self.gpu)
        return gpu.with_bridge() if self.is_bridged else gpu


_H100_NVL: Final = "notes on MLPerf Training 5.1 of 2026-05-18: NVLink bridge"
PUBLISHED: Final = (
    PublishedReduce("h100-sxm", 8, (370, 480), "NVIDIA/nccl-tests issue 212: ring, and NVLink SHARP"),
    PublishedReduce("h200", 8, (475, 475), "NVIDIA/nccl-tests issue 272"),
    PublishedReduce("a100-80gb-sxm", 8, (200, 200), "NVIDIA/nccl-tests issue 149"),
    PublishedReduce("h100-pcie", 2, (116, 116), "NVIDIA/nccl issue 1161: NVLink bridge", is_bridged=True),
    PublishedReduce("h100-nvl", 2, (211, 211), _H100_NVL, is_bridged=True),
    PublishedReduce("h100-nvl", 2, (50, 50), f"{_H100_NVL}, before it had one"),
    PublishedReduce("rtx-5090", 4, (35, 35), "NVIDIA/nccl issue 1639"),
    PublishedReduce("rtx-5090", 8, (28, 28), "NVIDIA/nccl issue 1639"),
    PublishedReduce("h100-sxm", 16, (368, 384), "NVIDIA/nccl-tests issue 290: eight adapters of 400 Gb/s a node", 2),
    PublishedReduce("h200", 1984, (300, 350), "NVIDIA/nccl-tests issue 283: eight adapters a node", 248),
)


def modelled(case: PublishedReduce, measured: MeasuredProfiles) -> tuple[float, float]:
    """GB/s of an all-reduce of 1 GiB: low and high end where only the data sheet is known, else one value twice."""
    gpu = case.profile
    found = sorted(_bus_bandwidth(gpu, case.num_gpus, each) for each in _efficiencies(gpu, case.num_gpus, measured))
    return found[0] / 1e9, found[-1] / 1e9


def _efficiencies(gpu: GpuProfile, num_gpus: int, measured: MeasuredProfiles) -> list[LinkEfficiency]:
    profile = measured.for_gpu(gpu, "bfloat16", "vllm")
    links = None if profile is None else KernelSpeed.from_json(profile.speeds).links
    if links is None:
        return [BEST.links, USUAL.links]
    if gpu.bridged_gpus is not None and not gpu.joins_by_nvlink(num_gpus):
        return [USUAL.links]
    return [LinkEfficiency(links.share, links.seconds(num_gpus), sends_to_chosen=False)]


def _bus_bandwidth(gpu: GpuProfile, num_gpus: int, efficiency: LinkEfficiency) -> float:
    """Bytes over the bus and second: an all-reduce moves 2 (n - 1) / n times its message."""
    moved = 2 * (num_gpus - 1) / num_gpus * _LARGE
    return moved / ring_over(gpu, num_gpus).seconds(moved, efficiency)
