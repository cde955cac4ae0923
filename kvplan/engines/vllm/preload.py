"""What vLLM servers are forked from: the modules that its processes import, before any of them decides anything."""

from __future__ import annotations

from typing import Final

from kvplan.catalog.releases.vllm import vllm_release
from kvplan.engines.interface import Installation, Preload
from kvplan.engines.vllm.command import environment
from kvplan.engines.vllm.limits import plugin_environment

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


def is_preloaded(installation: Installation) -> bool:
    """Whether servers are forked where nobody says so. On a GPU that was never tried, so there it must be asked for."""
    return installation.device == "cpu" and vllm_release(installation.version or "0.0").forked_on_cpu


def vllm_preload(python: str, prefix: str, *, on_cpu: bool, is_lowered: bool) -> Preload:
    """prefix: of the environment. is_lowered: with the scheduler of limits.py."""
    of_plugin = plugin_environment() if is_lowered else {}
    return Preload(python, MODULES, environment(prefix) | of_plugin | (_CPU_ENVIRONMENT if on_cpu else {}))
