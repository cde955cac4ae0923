"""Which engines can be swept: the one place that knows every adapter."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from kvplan.catalog.spec import ModelSpec
from kvplan.engines.documented.sglang import Sglang
from kvplan.engines.documented.trtllm import TrtLlm
from kvplan.engines.host import EngineServerHost, Source, lowered_settings
from kvplan.engines.interface import EngineAdapter, Installation, argument_pairs
from kvplan.engines.llamacpp.adapter import LlamaCpp
from kvplan.engines.running import RunningServer
from kvplan.engines.starter import preload_of
from kvplan.engines.vllm.adapter import VllmAdapter
from kvplan.errors import UsageError
from kvplan.machine.device import Device, detect_device
from kvplan.machine.host import available_memory_bytes
from kvplan.runs.trials import SETTING_NAMES
from kvplan.settings import KNOBS
from kvplan.sweeps.forecast.pool import EngineModel
from kvplan.sweeps.hosts import SweptEngine, TrialHost
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.rows import SweepIdentity

PRELOAD_NOTICE: Final = "servers are forked from a process that has imported {}; --no-preload starts each anew"
LOWERED_NOTICE: Final = "{} are lowered without a restart; memory stays as for the largest values"


def _vllm(options: SweepOptions) -> EngineAdapter:
    return VllmAdapter(
        _python(options), options.engine_command, options.engine_args, options.reuse_server, options.preload
    )


def _llamacpp(options: SweepOptions) -> EngineAdapter:
    return LlamaCpp(_words(options) or ("llama-server",), argument_pairs(options.engine_args))


def _sglang(options: SweepOptions) -> EngineAdapter:
    return Sglang(_python(options), _words(options), argument_pairs(options.engine_args))


def _trtllm(options: SweepOptions) -> EngineAdapter:
    return TrtLlm(_python(options), _words(options), argument_pairs(options.engine_args))


def _python(options: SweepOptions) -> str:
    return os.path.expanduser(options.engine_python or sys.executable)


def _words(options: SweepOptions) -> tuple[str, ...]:
    try:
        words = shlex.split(options.engine_command or "")
    except ValueError as error:
        raise UsageError(
            f"--engine-command '{options.engine_command}' cannot be read: {error}.", hint="check its quotes"
        ) from error
    return tuple(os.path.expanduser(word) for word in words)


_ADAPTERS: Final[Mapping[str, Callable[[SweepOptions], EngineAdapter]]] = {
    "vllm": _vllm,
    "llamacpp": _llamacpp,
    "sglang": _sglang,
    "trtllm": _trtllm,
}


def swept_engine(options: SweepOptions) -> SweptEngine | None:
    """The engine that the options name; None for kvplan's own. UsageError for one without an adapter."""
    if not options.is_foreign:
        return None
    engine = AdaptedEngine(_adapter(options)) if options.url is None else RunningServer(options.url)
    if options.reuse_server and not engine.lowered:
        raise UsageError(f"--reuse-server cannot be used with {options.engine}.", hint="leave it out")
    if options.preload and not engine.preloads:
        raise UsageError(
            f"--preload cannot be used with {options.engine_command or options.engine}.", hint="leave it out"
        )
    return engine


_ADDRESS: Final = frozenset({"host", "port", "uds", "served-model-name", "api-key", "model", "model-path"})
_SETTINGS: Final[Mapping[str, frozenset[str]]] = {
    "sglang": frozenset({"context-length", "max-running-requests", "chunked-prefill-size", "mem-fraction-static"}),
    "trtllm": frozenset({"max-batch-size", "max-num-tokens", "max-seq-len", "extra-llm-api-options"}),
}
"""What the sweep's own options say, under the engine's name: rows would name a setting that the server did not have."""
_ARGUMENT: Final = re.compile(r"(--)?[A-Za-z0-9][\w.-]*(=.*)?", re.DOTALL)


def _refuse_arguments(options: SweepOptions, axes: Collection[str]) -> None:
    """UsageError for an ``--engine-arg`` that is no option, is there twice, or is the sweep's own to say.

    axes: the settings that the engine's adapter has, which vLLM calls as this project does.
    """
    own = _SETTINGS.get(options.engine, frozenset())
    if options.engine == "vllm":
        own = frozenset(KNOBS[name].option.removeprefix("--") for name in axes if name in KNOBS)
    seen: set[str] = set()
    for text in options.engine_args:
        if not _ARGUMENT.fullmatch(text.strip()):
            raise UsageError(
                f"--engine-arg '{text}' is not KEY=VALUE.", hint="such as enforce-eager or cpu-offload-gb=4"
            )
        (name,) = argument_pairs([text])
        if name in seen:
            raise UsageError(f"--engine-arg {name} is given twice.", hint="leave one of them out")
        seen.add(name)
        if name in _ADDRESS or name in own:
            hint = "leave it out" if name in _ADDRESS else "the sweep has an option of its own for it"
            raise UsageError(f"--engine-arg {name} is set by the sweep.", hint=hint)


def _adapter(options: SweepOptions) -> EngineAdapter:
    make = _ADAPTERS.get(options.engine)
    if make is None:
        raise UsageError(f"There is no adapter for {options.engine} yet.", hint="one of " + ", ".join(_ADAPTERS))
    _words(options)  # so that every engine's command can be read
    adapter = make(options)
    _refuse_arguments(options, adapter.axes)
    return adapter


@dataclass(frozen=True)
class AdaptedEngine:
    """A SweptEngine."""

    adapter: EngineAdapter

    @cached_property
    def _installation(self) -> Installation:
        return self.adapter.identify()

    @property
    def name(self) -> str:
        return self.adapter.name

    @property
    def version(self) -> str | None:
        return self._installation.version

    @property
    def notices(self) -> tuple[str, ...]:
        version = self.version or "(version not told before it starts)"
        lines = [f"{self.name} {version} on the {self._installation.device.upper()}", *self._installation.notices]
        if self.preloads:
            lines.append(PRELOAD_NOTICE.format(self.name))
        if self.lowered:
            lines.append(LOWERED_NOTICE.format(" and ".join(sorted(self.lowered))))
        return tuple(lines)

    @property
    def preloads(self) -> bool:
        """Whether servers are forked from a process that has imported the engine."""
        return preload_of(self.adapter) is not None

    @property
    def lowered(self) -> frozenset[str]:
        return lowered_settings(self.adapter)

    def refuse(self, axes: Collection[str]) -> None:
        unknown = next((axis for axis in axes if axis not in self.adapter.axes), None)
        if unknown is not None:
            known = ", ".join(name for name in SETTING_NAMES if name in self.adapter.axes)
            raise UsageError(f"{self.name} has no {unknown} to sweep.", hint=f"it has {known}")
        if self.lowered and self._installation.device != "cpu" and "kv_cache_memory_bytes" not in axes:
            raise UsageError(
                "--reuse-server needs a KV pool of a given size: what is left for it depends on the settings.",
                hint="add --kv-cache-memory-bytes",
            )

    def device(self, memory_bytes: int | None) -> Device:
        kind = self._installation.device
        # A CPU's engine has all that is free; nothing limits it to a share.
        free = available_memory_bytes() if kind == "cpu" else None
        return detect_device(kind, memory_bytes or free, must_be_free=False, by_our_torch=False)

    def model(self, spec: ModelSpec, device: Device) -> EngineModel:
        return self.adapter.model(spec, device)

    def host(self, identity: SweepIdentity, spec: ModelSpec, model_path: Path | None, directory: Path) -> TrialHost:
        return EngineServerHost(self.adapter, identity, Source(spec, model_path, directory))
