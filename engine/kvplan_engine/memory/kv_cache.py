"""The KV pool, and its counterpart in host memory: each one allocation, divided into equal blocks of bytes."""

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


def allocate_host_pool(device_pool: torch.Tensor, num_slots: int) -> torch.Tensor | None:
    """``num_slots`` slots of host memory, as large as the blocks of ``device_pool``; None for 0.

    Pinned for a GPU, so that copies run at the link's full speed. Pages are committed when they are first written.
    OutOfDeviceMemory(phase="kv_host") when the allocation fails.
    """
    if not num_slots:
        return None
    block_bytes = device_pool.shape[1]
    with allocating("kv_host", num_slots * block_bytes):
        return torch.empty((num_slots, block_bytes), dtype=torch.uint8, device="cpu", pin_memory=device_pool.is_cuda)
