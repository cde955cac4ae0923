"""The report of this machine: versions, the device that would be taken, why not the GPU, and verdicts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from kvplan_engine.checkpoints.loaders import read_config
from kvplan_engine.config import EngineConfig
from kvplan_engine.device.cuda_absence import why_no_usable_gpu
from kvplan_engine.device.device import open_device, resolve_dtype
from kvplan_engine.doctor.cpu import cpu_facts
from kvplan_engine.doctor.gpu import gpu_facts
from kvplan_engine.kernel_checks.cpu import check_cpu_kernels
from kvplan_engine.kernel_checks.run import check_kernels
from kvplan_engine.kernel_checks.store import Store
from kvplan_engine.kernel_checks.table import FAMILIES
from kvplan_engine.kernel_checks.use import KernelUse, use_of
from kvplan_engine.kernel_checks.verdicts import Verdicts
from kvplan_engine.kernels.build import KernelBuildError
from kvplan_engine.kernels.cpu.library import STORAGE_CODES, load_kernels
from kvplan_engine.kernels.cuda.launching.emulation import EmulatedRuntime

EMULATED = "emulated"
"""The CUDA kernels, run by the CPU."""


def examine(config: EngineConfig, device: str, *, checks_anew: bool = False) -> dict[str, Any]:
    """The report as JSON. device: auto, cpu, cuda, or EMULATED. checks_anew: whatever is known from before.

    EngineError where ``cuda`` is asked for and there is none.
    """
    report: dict[str, Any] = {"torch": torch.__version__, "torch_cuda": torch.version.cuda, "cpu": cpu_facts()}
    absence = None if device in ("cpu", EMULATED) else why_no_usable_gpu()
    if device == EMULATED:
        runtime = EmulatedRuntime()
        dtype = "bfloat16" if config.dtype == "auto" else config.dtype
        verdicts = check_kernels(runtime, _use(config, dtype), Store(None))
        report["device"] = EMULATED
    elif device == "cuda" or (device == "auto" and absence is None):
        report["device"] = "cuda"
        report["gpu"], gpu = gpu_facts()
        dtype = _dtype_on("cuda", config)
        verdicts = check_kernels(gpu, _use(config, dtype), anew=checks_anew)
    else:
        report["device"] = "cpu"
        if absence is not None:
            report["why_no_gpu"] = {"sentence": absence.sentence, "hint": absence.hint, "gpu": absence.gpu}
        dtype = _dtype_on("cpu", config)
        report["kernels_name"], verdicts = _check_cpu(config, dtype)
    return report | {"dtype": dtype, **_as_json(verdicts)}


def _use(config: EngineConfig, dtype: str) -> KernelUse:
    return use_of(read_config(config.model), config, dtype)


def _dtype_on(kind: str, config: EngineConfig) -> str:
    return resolve_dtype(config.dtype, read_config(config.model).dtype, open_device(kind, None))


def _check_cpu(config: EngineConfig, dtype: str) -> tuple[str, Verdicts]:
    """What computes, and the verdicts on it; plain torch, on which there is none, where nothing can be compiled."""
    scalar = getattr(torch, dtype)
    if scalar not in STORAGE_CODES:
        return f"plain torch: the CPU kernels have no {dtype}", Verdicts(())
    try:
        kernels = load_kernels()
    except KernelBuildError as error:
        return f"plain torch: {error.message}", Verdicts(())
    return f"cpu-{kernels.instruction_set(scalar)}", check_cpu_kernels(kernels, _use(config, dtype))


def _as_json(verdicts: Verdicts) -> dict[str, Any]:
    rows = [
        {**asdict(each), "what": FAMILIES[each.family].what, "twin": FAMILIES[each.family].twin} for each in verdicts.of
    ]
    return {"verdicts": rows, "check_seconds": verdicts.seconds, "is_cached": verdicts.is_cached}
