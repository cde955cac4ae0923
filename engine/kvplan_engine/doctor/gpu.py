"""Facts of the GPU as CUDA and torch have them, and of what drives it."""

from __future__ import annotations

from typing import Any

import torch

from kvplan_engine.device.cuda import open_cuda
from kvplan_engine.doctor.compiler import place_of
from kvplan_engine.kernels.cuda.launching.driver import DriverRuntime, current_runtime


def gpu_facts() -> tuple[dict[str, Any], DriverRuntime]:
    """The current GPU, opened as an engine opens it. EngineError where it cannot be used."""
    device = open_cuda(None)
    runtime = current_runtime()
    properties = runtime.properties
    free, total = torch.cuda.mem_get_info(device.torch_device)
    known = torch.cuda.get_device_properties(device.torch_device)
    facts = {
        "name": device.name,
        "uuid": str(getattr(known, "uuid", "")),
        "capability": ".".join(map(str, properties.capability)),
        "num_multiprocessors": properties.num_multiprocessors,
        "total_bytes": total,
        "free_bytes": free,
        "overhead_bytes": device.overhead_bytes,
        "is_unified": bool(getattr(known, "is_integrated", False)),
        "num_devices": torch.cuda.device_count(),
        "driver_cuda": properties.driver_version,
        "architecture": runtime.architecture,
        "compiler": runtime.compiler,
        "compiler_place": place_of(runtime.compiler_path),
    }
    return facts, runtime
