"""A device whose memory is only counted: what an engine without tensors (``load_format="none"``) is measured against.

It may be larger than this machine, and a GPU that is not there.
"""

from __future__ import annotations

import torch

from kvplan_engine.device.cuda_absence import why_no_usable_gpu
from kvplan_engine.device.device import CpuDevice
from kvplan_engine.device.overhead import CPU_OVERHEAD_BYTES, CUDA_OVERHEAD_BYTES
from kvplan_engine.device.process_memory import default_cpu_bytes
from kvplan_engine.errors import EngineError


class CountedDevice(CpuDevice):
    """``total_bytes`` of memory that nothing is allocated from. kind: the device it stands for, cpu or cuda."""

    def __init__(self, kind: str, total_bytes: int) -> None:
        super().__init__(total_bytes)
        self.kind = kind
        self.overhead_bytes = CUDA_OVERHEAD_BYTES if kind == "cuda" else CPU_OVERHEAD_BYTES
        if kind == "cuda":
            self.name = "a GPU that is only counted"

    def auto_dtype(self, model_dtype: str) -> str:
        """Choose as a device with units for bfloat16 does, so that every machine counts the same bytes."""
        if self.kind == "cuda":
            return "float16" if model_dtype == "float16" else "bfloat16"
        return "bfloat16" if model_dtype != "float32" else "float32"


def count_device(kind: str, memory_bytes: int | None) -> CountedDevice:
    """``auto`` is this machine's usable GPU or its CPU. EngineError for the memory of a GPU that is not there."""
    has_gpu = kind != "cpu" and why_no_usable_gpu() is None
    if kind == "cuda" or has_gpu:
        return CountedDevice("cuda", memory_bytes or _gpu_bytes(is_here=has_gpu))
    return CountedDevice("cpu", memory_bytes or default_cpu_bytes())


def _gpu_bytes(*, is_here: bool) -> int:
    if not is_here:
        raise EngineError(
            "there is no GPU here whose memory could be counted.", hint="set device_memory, such as '80GiB'"
        )
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
