"""How fast a GPU reads its host's memory."""

from __future__ import annotations

from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.errors import KvplanError

REACHED_SHARE: Final = 0.7
"""Share of a bus's bandwidth by its data sheet: loads of 1.37 GB at 41 to 47 GB/s are in LMCache's log (LMCache pull
request 1740), where PCIe 5.0 x16 has 64."""


def host_bytes_per_second(gpu: GpuProfile) -> float:
    """What a GPU's bus reaches. KvplanError where its data sheet is not known."""
    if gpu.pcie_bytes_per_second is None:
        raise KvplanError(f"It is not known how fast {gpu.id} reads host memory.", hint="use other GPUs")
    return REACHED_SHARE * gpu.pcie_bytes_per_second
