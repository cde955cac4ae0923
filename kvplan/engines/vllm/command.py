"""Settings as vLLM's command line, and the environment that its build for CPUs wants."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kvplan.engines.interface import Command, StartOrder
from kvplan.engines.vllm.limits import SCHEDULER, limited_environment
from kvplan.runs.trials import SETTING_NAMES
from kvplan.settings import KNOBS

SERVER: Final = "vllm.entrypoints.openai.api_server"
_ALLOCATORS: Final = (
    "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
    "/usr/lib/aarch64-linux-gnu/libtcmalloc_minimal.so.4",
    "/usr/lib64/libtcmalloc_minimal.so.4",
)
_OPENMP: Final = "libiomp5.so"
_FORMATS: Final = {"auto": "auto", "dummy": "dummy", "safetensors": "safetensors", "gguf": "gguf"}


def server_command(
    program: tuple[str, ...], order: StartOrder, arguments: Mapping[str, str], prefix: str, *, is_lowered: bool = False
) -> Command:
    """``program``: what runs the server's module. arguments: further options by name, "" for a flag; they win.

    prefix: of the environment, in whose ``lib`` Intel's OpenMP may lie. is_lowered: with the scheduler of limits.py.
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
