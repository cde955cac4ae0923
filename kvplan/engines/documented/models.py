"""What SGLang's and TensorRT-LLM's adapters share, and what the planner expects of them with one model on one GPU."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from kvplan.catalog.devices.gpus import GpuProfile, find_gpu
from kvplan.catalog.spec import ModelSpec
from kvplan.engines.interface import Ending, Failure, Installation
from kvplan.errors import KvplanError
from kvplan.estimate.dtypes import serving_dtype
from kvplan.estimate.sglang import predict_sglang
from kvplan.estimate.trtllm import predict_trtllm
from kvplan.machine.device import Device
from kvplan.metrics.reading import EngineName
from kvplan.runs.trials import TrialSettings
from kvplan.sweeps.design import roomy_context
from kvplan.sweeps.forecast.pool import PlainLayout, PlainPool
from kvplan.workload.requests import RequestSpec

_ANSWER_SECONDS: Final = 60.0
_LAST_ERROR: Final = re.compile(r"^\s*((?:\w+\.)*\w*(?:Error|Exception): .+)$", re.MULTILINE)
_QUESTION: Final = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
_SEATS: Final = 128
_STEP_TOKENS: Final = 8192
_UTILIZATIONS: Final = (0.6, 0.85)

Sizing = Callable[[ModelSpec, GpuProfile, TrialSettings], PlainPool]


@dataclass(frozen=True, slots=True)
class GpuModel:
    """An EngineModel. block_size: the engine's own, where the sweep says none."""

    spec: ModelSpec
    device: Device
    size: Sizing
    block_size: int

    def memory(self, settings: TrialSettings) -> PlainPool:
        """KvplanError for a GPU that is not in the catalog, or a cache that is not modelled."""
        return self.size(self.spec, find_gpu(self.device.name), settings)

    def base_settings(self, requests: Sequence[RequestSpec], max_concurrency: int | None) -> TrialSettings:
        """Usual values of a data-centre GPU."""
        return TrialSettings(
            gpu_memory_utilization=_UTILIZATIONS[-1],
            max_num_seqs=_SEATS,
            block_size=self.block_size,
            max_model_len=roomy_context(requests, self.spec.max_position_embeddings),
            max_num_batched_tokens=_STEP_TOKENS,
        )

    def default_axes(self, base: TrialSettings) -> Mapping[str, Sequence[float | int | str]]:
        """Seats by the share of memory."""
        return {"max_num_seqs": (base.max_num_seqs // 4, base.max_num_seqs), "gpu_memory_utilization": _UTILIZATIONS}


def sglang_pool(spec: ModelSpec, gpu: GpuProfile, settings: TrialSettings) -> PlainPool:
    """SGLang's pools as ``kvplan explain`` predicts them; windows and states have theirs beside the tokens."""
    found = predict_sglang(spec, gpu, settings)
    tokens = found.kv_cache_tokens
    if found.weight_bytes > found.mem_fraction_static * found.device_memory_bytes:
        outcome = "oom_weights"
    elif tokens < settings.max_model_len:
        outcome = "rejected_ctx" if tokens else "oom_kv_init"
    else:
        outcome = "ok"
    return PlainPool(
        outcome=outcome,
        dtype=serving_dtype(spec.dtype, settings.dtype),
        weight_bytes=found.weight_bytes,
        fixed_bytes=found.device_memory_bytes - found.kv_pool_bytes,
        block_bytes=found.bytes_per_token,
        num_blocks=tokens,
        usable_blocks=tokens // settings.block_size,
        kv_cache_tokens=tokens,
        largest_context=tokens,
        layout=PlainLayout(float(found.bytes_per_token)),
    )


def trtllm_pool(spec: ModelSpec, gpu: GpuProfile, settings: TrialSettings) -> PlainPool:
    """See kvplan.estimate.trtllm."""
    found = predict_trtllm(spec, gpu, settings)
    tokens = found.kv_cache_tokens
    enough = "ok" if tokens >= settings.max_model_len else "rejected_ctx"
    return PlainPool(
        outcome="oom_weights" if found.weight_bytes > found.device_memory_bytes else enough,
        dtype=found.dtype,
        weight_bytes=found.weight_bytes,
        fixed_bytes=found.weight_bytes + found.other_bytes,
        block_bytes=found.bytes_per_token * found.block_size,
        num_blocks=tokens // found.block_size,
        usable_blocks=tokens // settings.block_size,
        kv_cache_tokens=tokens,
        largest_context=tokens,
        layout=PlainLayout(float(found.bytes_per_token)),
    )


@dataclass(frozen=True)
class DocumentedEngine:
    """A Python package in an environment of its own, as an EngineAdapter.

    python: the interpreter of that environment; command_words: or the server's command; given: ``--engine-arg``.
    title, package: how the engine is called, by people and by Python.
    """

    name: ClassVar[EngineName]
    title: ClassVar[str]
    package: ClassVar[str]
    axes: ClassVar[frozenset[str]]
    health_path: ClassVar[str] = "/health"

    python: str = "python"
    command_words: Sequence[str] = ()
    given: Mapping[str, str] = field(default_factory=dict)

    def identify(self) -> Installation:
        """The version in the interpreter. KvplanError where the package is not installed there."""
        version = None if self.command_words else package_version(self.python, self.package)
        unproven = f"{self.title} is started by its documentation; this adapter has not been run against it"
        return Installation(version, "cuda", (unproven,))

    def crash(self, ending: Ending) -> Failure:
        """Return the failure that is none of memory: who killed it, or the last error that it printed."""
        if ending.out_of_host_memory:
            return Failure("crash", "The kernel killed it: this machine's memory ran out.")
        if ending.exit_code == -signal.SIGKILL:
            return Failure("crash", f"{self.title} was killed by signal 9 (SIGKILL).")
        return Failure("crash", f"{self.title} ended: {last_error(ending)}.")


def last_error(ending: Ending) -> str:
    """Return the last error that was printed, or the exit code, without a full stop."""
    errors = _LAST_ERROR.findall(ending.log)
    return str(errors[-1]).rstrip(".") if errors else f"exit code {ending.exit_code}"


def package_version(python: str, package: str) -> str:
    """The version that ``python`` has of ``package``, without importing it. KvplanError where it has none."""
    try:
        answer = subprocess.run(
            [python, "-c", _QUESTION, package], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or "it does not answer"
        raise KvplanError(f"'{python}' cannot be run ({reason}).", hint="--engine-python PATH/bin/python") from error
    if answer.returncode:
        hint = "--engine-python names the interpreter of the environment that has it"
        raise KvplanError(f"{python} has no package {package}.", hint=hint)
    return answer.stdout.strip()
