"""Telling an out-of-memory apart from every other failure, and saying when it happened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kvplan_engine.errors import OutOfDeviceMemory

# What torch's CPU allocator says when mmap or malloc refuses; its CUDA allocator has a type of its own.
_CPU_ALLOCATOR_MESSAGES = ("can't allocate memory", "not enough memory", "std::bad_alloc")

_WHAT_FAILED = {
    "weights": "the model's weights do not fit the device",
    "kv_init": "the workspace and the KV pool could not be allocated",
    "kv_host": "the host memory for swapped and cached KV could not be allocated",
    "runtime": "an allocation failed while requests were running",
}

_HINTS = {"kv_host": "lower swap_space or kv_host_cache_bytes"}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` means that memory is used up, on the CPU or on a GPU."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _CPU_ALLOCATOR_MESSAGES)


@contextmanager
def allocating(phase: str, requested_bytes: int | None = None) -> Iterator[None]:
    """Turn an out-of-memory in the block into OutOfDeviceMemory of ``phase``."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, OutOfDeviceMemory) or not is_out_of_memory(error):
            raise
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise OutOfDeviceMemory(
            f"{_WHAT_FAILED[phase]}: {first_line}",
            phase=phase,
            requested_bytes=requested_bytes,
            hint=_HINTS.get(
                phase, "lower gpu_memory_utilization, max_num_seqs or max_model_len, or give the device more memory"
            ),
        ) from error
