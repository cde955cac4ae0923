"""The KV pool: one allocation, divided into equal blocks of bytes."""

from __future__ import annotations

import torch

from kvplan_engine.device.allocation import allocating
from kvplan_engine.kernels.cpu.huge_pages import advise_huge_pages


def allocate_kv_pool(num_blocks: int, block_bytes: int, device: torch.device) -> torch.Tensor:
    """[num_blocks, block_bytes] uint8. What lies where in a block is the layout's (``models/kv_pool.py``).

    OutOfDeviceMemory(phase="kv_init") when the allocation fails.
    """
    with allocating("kv_init", num_blocks * block_bytes):
        pool = torch.empty((num_blocks, block_bytes), dtype=torch.uint8, device=device)
    advise_huge_pages(pool)
    return pool
