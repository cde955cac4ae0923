"""Which attention backend runs on a device."""

from __future__ import annotations

import importlib

import torch

from kvplan_engine.attention.backend import AttentionBackend
from kvplan_engine.attention.cpu import CpuBackend
from kvplan_engine.attention.reference import ReferenceBackend
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.cpu.library import STORAGE_CODES, cpu_kernels, load_kernels

BACKEND_NAMES = ("auto", "cpu", "reference", "cuda")


def select_backend(name: str, device: torch.device | str, dtype: torch.dtype) -> AttentionBackend:
    """The backend called ``name``, or for "auto" the fastest that works on ``device`` with ``dtype``.

    "auto" falls back to the reference, with one line in the log when that is for want of a compiler; a backend asked
    for by name that cannot run raises EngineError.
    """
    device_type = torch.device(device).type
    if name not in BACKEND_NAMES:
        raise EngineError(f"no attention backend is called {name!r}", hint=f"choose one of {', '.join(BACKEND_NAMES)}")
    if name == "reference":
        return ReferenceBackend()
    if name == "cpu" or (name == "auto" and device_type == "cpu"):
        return _cpu_backend(name, device_type, dtype)
    if name == "cuda" or device_type == "cuda":
        return _cuda_backend(name, device_type)
    return ReferenceBackend()


def _cpu_backend(name: str, device_type: str, dtype: torch.dtype) -> AttentionBackend:
    if name == "cpu" and (device_type != "cpu" or dtype not in STORAGE_CODES):
        raise EngineError(
            f"the cpu attention backend does not run {dtype} on {device_type}",
            hint="use float32 or bfloat16 on the cpu device, or attention_backend='auto'",
        )
    if name == "cpu":
        return CpuBackend(load_kernels())
    kernels = cpu_kernels() if dtype in STORAGE_CODES else None
    return ReferenceBackend() if kernels is None else CpuBackend(kernels)


def _cuda_backend(name: str, device_type: str) -> AttentionBackend:
    if device_type != "cuda":
        raise EngineError(f"the cuda attention backend does not run on {device_type}", hint="use a CUDA device")
    try:
        module = importlib.import_module("kvplan_engine.attention.cuda")
    except ModuleNotFoundError as error:
        if name == "auto":
            return ReferenceBackend()
        raise EngineError("the cuda attention backend is not part of this installation") from error
    backend: AttentionBackend = module.CudaBackend()
    return backend
