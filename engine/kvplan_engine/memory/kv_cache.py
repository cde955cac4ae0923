"""The KV pool: one allocation, divided into planes, in each of which every block has an equal part of its bytes."""

from __future__ import annotations

import torch

from kvplan_engine.device.allocation import allocating
from kvplan_engine.kernels.cpu.huge_pages import advise_huge_pages


def allocate_kv_pool(num_blocks: int, block_bytes: int, device: torch.device, num_planes: int = 1) -> torch.Tensor:
    """[num_planes, num_blocks, block_bytes / num_planes] uint8. What lies where in a block is the layout's
    (``models/kv_pool.py``); ``num_planes`` divides its bytes.

    OutOfDeviceMemory(phase="kv_init") when the allocation fails.
    """
    with allocating("kv_init", num_blocks * block_bytes):
        pool = torch.empty((num_planes, num_blocks, block_bytes // num_planes), dtype=torch.uint8, device=device)
    advise_huge_pages(pool)
    return pool
