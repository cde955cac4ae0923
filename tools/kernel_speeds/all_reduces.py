"""All-reduces by number of ranks, from the tables of them alone: for GPUs without NVLink.

Their messages go through the host's memory, so that step times fit no single share of the link: on one L40S machine
four ranks reach a fifth of what two do, on another as much. A plan does not know the host, so both ends count.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import aiconfigurator_core
import numpy as np
import pandas as pd

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.estimate.speed.steps.rank_step import LinkSpeed

_SMALL_BYTES = 4 << 10
_LARGE_BYTES = (256 << 10, 64 << 20)
"""What steps send: from some sequences' hidden vectors to those of a chunk of prompts."""
_ELEMENT_BYTES = 2


def links_alone(gpu: GpuProfile, system: str) -> LinkSpeed | None:
    """The geometric middle of the slowest and the fastest table of the GPU, whichever engine's.

    None with NVLink, whose share fits to steps have beside them, and without a table.
    """
    folder = Path(aiconfigurator_core.__file__).parent / "systems" / "data" / system / "comm"
    link = gpu.pcie_bytes_per_second
    if link is None or gpu.nvlink_bytes_per_second is not None:
        return None
    seconds, shares = defaultdict(list), defaultdict(list)
    for path in folder.glob("*/*/custom_allreduce_perf.parquet"):
        for ranks, part in _in_graphs(pd.read_parquet(path)).groupby("num_gpus"):
            small, share = _fitted(part, int(ranks), link)
            seconds[int(ranks)].append(small)
            shares[int(ranks)].append(share)
    if not shares:
        return None
    return LinkSpeed(
        {ranks: _middle(found) for ranks, found in sorted(seconds.items())},
        {ranks: _middle(found) for ranks, found in sorted(shares.items())},
    )


def _in_graphs(table: pd.DataFrame) -> pd.DataFrame:
    found = table[table["allreduce_dtype"].isin(("bfloat16", "half", "float16"))]
    return found[found["backend"].str.endswith("graph")] if "backend" in found else found


def _fitted(table: pd.DataFrame, ranks: int, link: float) -> tuple[float, float]:
    """(seconds of a small one, share of ``link`` that large ones reach beyond that)."""
    size, seconds = _ELEMENT_BYTES * table["message_size"].to_numpy(), table["latency"].to_numpy() / 1000
    small = float(np.median(seconds[size <= _SMALL_BYTES]))
    large = (size >= _LARGE_BYTES[0]) & (size <= _LARGE_BYTES[1])
    moved = 2 * (ranks - 1) / ranks * size[large]
    return small, float(np.exp(np.mean(np.log(moved / (seconds[large] - small) / link))))


def _middle(found: list[float]) -> float:
    return float((min(found) * max(found)) ** 0.5)
