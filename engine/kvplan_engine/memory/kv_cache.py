"""The KV pool, and its counterpart in host memory: each one allocation, divided into blocks."""

from __future__ import annotations

import torch

from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.uniform import uniform_attention
from kvplan_engine.device.allocation import allocating
from kvplan_engine.kernels.cpu.huge_pages import advise_huge_pages
from kvplan_engine.memory.breakdown import kv_block_bytes


def allocate_kv_pool(
    model: ModelDescription, *, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """[num_blocks, num_layers, 2, num_kv_heads, block_size, head_size]; index 0 of the third axis holds keys, 1 values.

    A block is contiguous, with all layers in it, so that copying, swapping or storing it is one copy.
    OutOfDeviceMemory(phase="kv_init") when the allocation fails.
    """
    attention = uniform_attention(model)
    assert attention is not None, "a decoder refuses layers that differ"
    shape = (num_blocks, model.num_layers, 2, attention.num_kv_heads, block_size, attention.key_size)
    num_bytes = num_blocks * kv_block_bytes(model, str(dtype).removeprefix("torch."), block_size)
    with allocating("kv_init", num_bytes):
        pool = torch.empty(shape, dtype=dtype, device=device)
    advise_huge_pages(pool)
    assert pool.numel() * pool.element_size() == num_bytes
    return pool


def allocate_host_pool(device_pool: torch.Tensor, num_slots: int) -> torch.Tensor | None:
    """``num_slots`` slots of host memory, laid out like the blocks of ``device_pool``; None for 0.

    Pinned for a GPU, so that copies run at the link's full speed. Pages are committed when they are first written.
    OutOfDeviceMemory(phase="kv_host") when the allocation fails.
    """
    if not num_slots:
        return None
    shape = (num_slots, *device_pool.shape[1:])
    with allocating("kv_host", num_slots * device_pool[0].nbytes):
        return torch.empty(shape, dtype=device_pool.dtype, device="cpu", pin_memory=device_pool.is_cuda)
