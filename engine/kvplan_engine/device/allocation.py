"""Recognising out-of-memory errors, and reporting in which phase they happened."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kvplan_engine.device.process_memory import large_tensors_apart
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
_CPU_REQUEST = re.compile(r"DefaultCPUAllocator: .* allocate (\d+) bytes")
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
    "weights": "use a smaller dtype, fewer or smaller adapters, or a device with more memory",
    "kv_host": "lower swap_space or kv_host_cache_bytes",
    "graph_capture": "lower gpu_memory_utilization or max_num_seqs, or set enforce_eager",
}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` means out of memory, on the CPU or on a GPU."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError, CudaOutOfMemory)):
        return True
    if not isinstance(error, RuntimeError):
        return False
    return any(text in str(error) for text in _MESSAGES) or _is_nccl_without_memory(str(error))


def _is_nccl_without_memory(text: str) -> bool:
    """NCCL names the call that failed, and what CUDA said in a line of its own or the same one."""
    return "NCCL" in text and "out of memory" in text.lower()


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
        raise OutOfDeviceMemory(
            _WHAT_FAILED[phase] + _in_words(error),
            phase=phase,
            requested_bytes=requested_bytes,
            hint=_HINTS.get(
                phase, "lower gpu_memory_utilization, max_num_seqs or max_model_len, or give the device more memory"
            ),
        ) from error


def _in_words(error: BaseException) -> str:
    """What follows the sentence of a phase: how much a CPU was asked for, or else the error's first line."""
    text = str(error).strip()
    asked = _CPU_REQUEST.search(text)
    if asked is not None:
        return f": the system has no room for {int(asked[1]):,} bytes more."
    return f": {text.splitlines()[0]}" if text else "."


@contextmanager
def loading_weights() -> Iterator[None]:
    """``allocating`` the weights, with the heap set for it."""
    with allocating("weights"), large_tensors_apart():
        yield


# Memory that a process takes of a device besides its tensors, reserved before anything is measured.
#
# Allocator slack, BLAS scratch, thread stacks; on a GPU also the context and the libraries' code. The profile step
# checks it and raises it if it was too small.


CPU_OVERHEAD_BYTES = 128 * 1024**2
CUDA_OVERHEAD_BYTES = 640 * 1024**2
