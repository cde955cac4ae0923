"""vLLM as an EngineAdapter, and what one that is up says of itself."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

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
from kvplan.engines.vllm.command import SERVER, server_command
from kvplan.engines.vllm.failures import read_failure
from kvplan.engines.vllm.installation import installation_from, packages_of
from kvplan.engines.vllm.limits import LOWERED, steps_file, write_limits
from kvplan.engines.vllm.model import VllmModel
from kvplan.engines.vllm.preload import is_preloaded, vllm_preload
from kvplan.explaining.startup_log import parse_startup_log
from kvplan.machine.device import Device
from kvplan.metrics.reading import EngineName, ServerReading
from kvplan.runs.trials import TrialSettings
from kvplan.sweeps.forecast.pool import EngineModel

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
