"""Which engines can be swept: the one place that knows every adapter."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import Final

from kvplan.engines.documented.sglang import Sglang
from kvplan.engines.documented.trtllm import TrtLlm
from kvplan.engines.interface import EngineAdapter, argument_pairs
from kvplan.engines.llamacpp.adapter import LlamaCpp
from kvplan.engines.running import RunningServer
from kvplan.engines.swept import AdaptedEngine
from kvplan.engines.vllm.adapter import VllmAdapter
from kvplan.errors import UsageError
from kvplan.sweeps.hosts import SweptEngine
from kvplan.sweeps.options import SweepOptions


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
    return tuple(os.path.expanduser(word) for word in shlex.split(options.engine_command or ""))


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


def _adapter(options: SweepOptions) -> EngineAdapter:
    make = _ADAPTERS.get(options.engine)
    if make is None:
        raise UsageError(f"There is no adapter for {options.engine} yet.", hint="one of " + ", ".join(_ADAPTERS))
    return make(options)
