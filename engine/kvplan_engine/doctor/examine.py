"""The report of this machine: versions, the device that would be taken, why not the GPU, and verdicts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from kvplan_engine.checkpoints.loaders import read_config
from kvplan_engine.config import EngineConfig
from kvplan_engine.description.division import Rank
from kvplan_engine.device.collectives import Collectives, open_store
from kvplan_engine.device.cuda import open_cuda, why_no_usable_gpu
from kvplan_engine.device.custom_all_reduce import NOT_RIGHT, choose_all_reduce
from kvplan_engine.device.device import cpu_name, open_device, resolve_dtype
from kvplan_engine.device.process_memory import available_memory_bytes
from kvplan_engine.errors import describe_exit
from kvplan_engine.kernel_checks.cpu import check_cpu_kernels
from kvplan_engine.kernel_checks.run import check_kernels
from kvplan_engine.kernel_checks.use import FAMILIES, KernelUse, use_of
from kvplan_engine.kernel_checks.verdicts import Store, Verdicts
from kvplan_engine.kernels.build import KernelBuildError
from kvplan_engine.kernels.cpu.library import STORAGE_CODES, load_kernels
from kvplan_engine.kernels.cuda.all_reduce import MOST_RANKS
from kvplan_engine.kernels.cuda.launching.driver import DriverRuntime, current_runtime
from kvplan_engine.kernels.cuda.launching.emulation import EmulatedRuntime
from kvplan_engine.kernels.cuda.launching.families import ALL_REDUCE

# Sums over the GPUs of this machine, chosen as the ranks of an engine choose them at their start: a process for each.
#
# ``python -m kvplan_engine.doctor.examine FOLDER INDEX COUNT DTYPE KIND`` is one of them; KIND is cuda or emulated.


PATIENCE_SECONDS = 90.0
"""The most that the whole trial may take: processes that import torch, NCCL's start, comparing and timing."""


def choose_over_gpus(num_ranks: int, dtype: str, kind: str = "cuda") -> str:
    """Describe what so many GPUs choose, or why that is not known. kind: cuda, or emulated on the CPU."""
    with tempfile.TemporaryDirectory(prefix="kvplan-ranks-") as folder:
        command = [sys.executable, "-m", __spec__.name, folder]
        paths = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        processes = [
            subprocess.Popen(
                [*command, str(index), str(num_ranks), dtype, kind],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=paths,
                text=True,
            )
            for index in range(num_ranks)
        ]
        try:
            return _first_answer(processes)
        finally:
            for process in processes:
                process.kill()
                with process:  # waits for it, and closes its pipe
                    pass


def _first_answer(processes: list[subprocess.Popen[str]]) -> str:
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        codes = [process.poll() for process in processes]
        for index, code in enumerate(codes):
            if code:
                return f"not known, rank {index} {describe_exit(code)}"
        if not any(code is None for code in codes):
            said = processes[0].stdout
            assert said is not None
            return said.read().strip().rpartition("\n")[2]  # NCCL_DEBUG writes before it
        time.sleep(0.02)
    return f"not known, the ranks took more than {PATIENCE_SECONDS:.0f} s"


def main() -> None:
    """Choose with the others, and print the first one's words."""
    folder, index, count, dtype, kind = sys.argv[1:]
    rank, on_gpu = Rank(int(index), int(count)), kind == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank.index)
    collectives = Collectives(rank, open_store(os.path.join(folder, "meeting"), rank.count), on_gpu=on_gpu)
    runtime = current_runtime() if on_gpu else EmulatedRuntime()
    choice = choose_all_reduce(runtime, collectives, getattr(torch, dtype))
    if not rank.index:
        print(choice.why, flush=True)
    os._exit(0)  # not waiting for threads of the collectives


# Where NVRTC was found, in words that name no user: a report is pasted into an issue.


_SYSTEM = ("/usr/", "/opt/", "/lib")


def place_of(path: str) -> str:
    """``beside torch (nvidia/cu13/lib)``, the environment, a toolkit, a folder of the system, or the file's name."""
    file = Path(path)
    parts = file.parts
    if "site-packages" in parts or "dist-packages" in parts:
        name = "site-packages" if "site-packages" in parts else "dist-packages"
        below = parts[len(parts) - parts[::-1].index(name) :]
        return f"beside torch ({'/'.join(below[:-1])})"
    if file.is_relative_to(Path(sys.prefix) / "lib"):
        return "in the environment's lib"
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        root = os.environ.get(variable)
        if root and file.is_relative_to(root):
            return f"in ${variable}"
    return path if path.startswith(_SYSTEM) else file.name


# Facts of the processor: what the CPU kernels are compiled for.


_UNITS = {
    "AVX2": ("avx2",),
    "AVX-512": ("avx512f",),
    "AVX-512 BF16": ("avx512_bf16",),
    "AMX": ("amx_tile",),
    "AMX BF16": ("amx_bf16",),
    "NEON": ("asimd",),
    "SVE": ("sve",),
}
"""The flags of /proc/cpuinfo that stand for each unit, by its name."""


def cpu_facts() -> dict[str, Any]:
    """Name, units, threads and free memory."""
    return {
        "name": cpu_name(),
        "units": cpu_units(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")),
        "num_threads": torch.get_num_threads(),
        "available_bytes": available_memory_bytes(),
    }


def cpu_units(cpuinfo: str) -> list[str]:
    """Units for vectors and matrices that the text of /proc/cpuinfo lists."""
    lines = [line.partition(":")[2] for line in cpuinfo.splitlines() if line.startswith(("flags", "Features"))]
    flags = set(lines[0].split()) if lines else set()
    return [name for name, wanted in _UNITS.items() if flags.issuperset(wanted)]


# Facts of the GPU as CUDA and torch have them, and of what drives it.


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
        verdicts = check_kernels(runtime, replace(_use(config, dtype), num_ranks=2), Store(None))
        report["device"] = EMULATED
    elif device == "cuda" or (device == "auto" and absence is None):
        report["device"] = "cuda"
        report["gpu"], gpu = gpu_facts()
        dtype = _dtype_on("cuda", config)
        num_ranks = min(torch.cuda.device_count(), MOST_RANKS)
        verdicts = check_kernels(gpu, replace(_use(config, dtype), num_ranks=num_ranks), anew=checks_anew)
        if num_ranks > 1:
            is_right = ALL_REDUCE not in verdicts.avoided
            report["gpu"]["custom_all_reduce"] = choose_over_gpus(num_ranks, dtype) if is_right else NOT_RIGHT
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


if __name__ == "__main__":
    main()
