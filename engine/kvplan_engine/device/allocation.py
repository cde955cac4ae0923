"""Recognising out-of-memory errors, and reporting in which phase they happened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kvplan_engine.device.heap import large_tensors_apart
from kvplan_engine.errors import CudaOutOfMemory, OutOfDeviceMemory

# Messages of torch's CPU allocator when mmap or malloc fails; its CUDA allocator has an exception type of its own. A
# GPU's memory also runs out in the driver (graphs, modules) and in libraries that create their handles.
_MESSAGES = (
    "can't allocate memory",
    "not enough memory",
    "std::bad_alloc",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
# After one of these a process cannot use its GPU any more: every later call fails with the same message.
_LOST_CONTEXT = (
    "an illegal memory access was encountered",
    "device-side assert triggered",
    "unspecified launch failure",
    "misaligned address",
    "an illegal instruction was encountered",
    "hardware stack error",
    "uncorrectable ECC error",
    "context is destroyed",
)

_WHAT_FAILED = {
    "weights": "the model's weights do not fit the device",
    "kv_init": "the workspace and the KV pool could not be allocated",
    "graph_capture": "no room was left to capture steps as graphs",
    "kv_host": "the host memory for swapped and cached KV could not be allocated",
    "runtime": "an allocation failed while requests were running",
}

_HINTS = {
    "kv_host": "lower swap_space or kv_host_cache_bytes",
    "graph_capture": "lower gpu_memory_utilization or max_num_seqs, or set enforce_eager",
}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` means out of memory, on the CPU or on a GPU."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError, CudaOutOfMemory)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _MESSAGES)


def is_context_lost(error: BaseException) -> bool:
    """Whether ``error`` leaves the GPU unusable for this process, so that only a new process can continue."""
    return any(text in str(error) for text in _LOST_CONTEXT)


@contextmanager
def allocating(phase: str, requested_bytes: int | None = None) -> Iterator[None]:
    """Turn an out-of-memory error in the block into OutOfDeviceMemory of ``phase`` (a key of _WHAT_FAILED)."""
    try:
        yield
    except (RuntimeError, MemoryError, CudaOutOfMemory) as error:
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


@contextmanager
def loading_weights() -> Iterator[None]:
    """``allocating`` the weights, with the heap set for it."""
    with allocating("weights"), large_tensors_apart():
        yield
