"""Which engines can be swept: the one place that knows every adapter."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Final

from kvplan.engines.interface import EngineAdapter
from kvplan.engines.swept import AdaptedEngine
from kvplan.engines.vllm.adapter import VllmAdapter
from kvplan.errors import UsageError
from kvplan.sweeps.hosts import SweptEngine
from kvplan.sweeps.options import SweepOptions


def _vllm(options: SweepOptions) -> EngineAdapter:
    python = os.path.expanduser(options.engine_python or sys.executable)
    return VllmAdapter(python, options.engine_command, options.engine_args, options.reuse_server)


_ADAPTERS: Final[Mapping[str, Callable[[SweepOptions], EngineAdapter]]] = {"vllm": _vllm}


def swept_engine(options: SweepOptions) -> SweptEngine | None:
    """The engine that the options name; None for kvplan's own. UsageError for one without an adapter."""
    if not options.is_foreign:
        return None
    make = _ADAPTERS.get(options.engine)
    if make is None:
        raise UsageError(f"There is no adapter for {options.engine} yet.", hint="one of " + ", ".join(_ADAPTERS))
    engine = AdaptedEngine(make(options))
    if options.reuse_server and not engine.lowered:
        raise UsageError(f"--reuse-server cannot be used with {options.engine}.", hint="leave it out")
    return engine
